"""`rollcall lab`. Its options are in the lab itself: an experiment's file, run as a program, has the same."""

from rollcall.lab.runner.command import lab

__all__ = ["lab"]

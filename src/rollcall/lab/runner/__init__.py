"""Runs experiments: starts their ranks, collects results, prints verdicts, writes pages."""

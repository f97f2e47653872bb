"""The runner of `rollcall`, for the benchmark's tests too."""

from tests.launch.conftest import rollcall

__all__ = ["rollcall"]

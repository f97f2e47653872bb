"""Used by worker/main.py: a forked rank runs its program, and ends, as `python script.py` does."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="python_main",
    purpose="runs a program in a forked rank as CPython runs it",
    lost_without="ranks start with --start fresh only",
    uses=("runpy:_run_module_as_main", "threading:_shutdown", "atexit:_run_exitfuncs"),
    tried_on=("Python 3.11 to 3.14",),
)

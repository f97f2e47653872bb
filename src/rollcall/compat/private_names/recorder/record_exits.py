"""Used by record/hooks/exits.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="record_exits",
    purpose="records signals that a rank sends, and os._exit",
    lost_without="an end without a traceback has no line of the program",
    uses=("os:kill", "os:abort", "os:_exit", "signal:raise_signal"),
    tried_on=("Python 3.11 to 3.14",),
    can_be_left_out=True,
)

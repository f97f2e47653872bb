"""Used by record/ (the user's line of an op, the error that a rank handles), and initialization/environment.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="python_frames",
    purpose="finds the user's line of an op",
    lost_without="recording does not start",
    uses=("sys:_getframe", "sys:_current_exceptions", "sys:_current_frames"),
    tried_on=("Python 3.11 to 3.14",),
)

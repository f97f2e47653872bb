"""Used by rollcall_autostart.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="python_children",
    purpose="records what a child of multiprocessing raised, from Python 3.13 on",
    lost_without="a child that raised is recorded as one that ended with exit code 0",
    uses=("multiprocessing.process:BaseProcess._bootstrap",),
    tried_on=("Python 3.11 to 3.13",),
)

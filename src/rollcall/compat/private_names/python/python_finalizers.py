"""Used by worker/fork_server.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="python_finalizers",
    purpose="keeps a forked rank from running finalizers of the process that it was forked from",
    lost_without="a rank's end may delete temporary files of the agent",
    uses=("weakref:finalize._registry",),
    tried_on=("Python 3.11 to 3.14",),
)

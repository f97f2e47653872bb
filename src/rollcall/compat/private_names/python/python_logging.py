"""Used by agent/main.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="python_logging",
    purpose="log records of a warm start count their time from the start of the run",
    lost_without="relativeCreated counts from the start of the warm server",
    uses=("logging:_startTime",),
    tried_on=("Python 3.11 to 3.14",),
)

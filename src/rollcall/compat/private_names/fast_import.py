"""Used by agent/fast_import/."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="fast_import",
    purpose="loads torch's libraries while Python imports other modules",
    lost_without="a run starts 0.2 s later",
    uses=("torch._dynamo:", "importlib.machinery:PathFinder"),
)

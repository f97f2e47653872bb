"""Used by record/tensors.py and record/hooks/patching.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="record_tensors",
    purpose="reads size and version of any tensor without running code of subclasses or modes",
    lost_without="recording stops at the first op",
    uses=(
        "torch:_C.DisableTorchFunctionSubclass",
        "torch:_C.DisableTorchFunction",
        "torch:_C._is_torch_function_mode_enabled",
        "torch:_C._DisableTorchDispatch",
        "torch:Tensor._base",
        "torch:Tensor._version",
        "torch:Tensor._indices",
        "torch:Tensor._values",
    ),
)

"""Used by train/weights/initialize.py and train/callbacks/ema.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="training",
    purpose="gives values to a model that was built on meta; averages weights (EMA) in one call for all tensors",
    lost_without="models on meta, and rollcall.train's EMA, do not work",
    uses=(
        "torch.nn:Module.register_buffer<_non_persistent_buffers_set>",
        "torch:_foreach_lerp_",
        "torch:_foreach_copy_",
    ),
    tried_on=("torch 2.13",),
)

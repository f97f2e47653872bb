"""Used by worker/numa_binding.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="numa_binding",
    purpose="binds ranks to the processors near their GPUs, as torchrun does",
    lost_without="--numa-binding fails",
    tried_on=("torch 2.11 to 2.15",),  # torch 2.9 does not have it
    uses=("torch.numa.binding:_maybe_apply_numa_binding_to_current_process",),
)

"""Used by worker/numa_binding.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="numa_binding",
    purpose="binds ranks to the processors near their GPUs, as torchrun does",
    lost_without="--numa-binding fails",
    uses=("torch.numa.binding:_maybe_apply_numa_binding_to_current_process",),
)

"""Used by record/hooks/functional.py and symmetric_memory.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="record_functional",
    purpose="records functional collectives: DTensor, compiled programs",
    lost_without="functional collectives are not recorded",
    uses=(
        "torch:ops._c10d_functional.all_reduce._op",
        "torch:ops._c10d_functional.all_reduce.default._op",
        "torch:ops._c10d_functional.wait_tensor.default._op",
        "torch:ops._c10d_functional_autograd",
        "torch:ops._c10d_functional.all_reduce.default._schema",
        "torch._C:_distributed_c10d",
        "torch.jit._builtins:_register_builtin",
    ),
    can_be_left_out=True,
)

"""Used by lab/experiments/collective/collectives.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="nccl_premul_sum",
    purpose="shows the reduce op PREMUL_SUM in `rollcall lab collectives`",
    lost_without="this experiment has one op less",
    uses=("torch.distributed:_make_nccl_premul_sum",),
)

"""Used by record/hooks/ddp.py, record/hooks/reducer.py, record/cpp/buckets.h and record/cpp/phases.h."""

from rollcall.compat.patch import Patch

_DDP = "torch.nn.parallel:DistributedDataParallel"
FORWARD_USES = tuple(
    f"{_DDP}.__init__<{name}>" for name in ("_comm_hooks", "_module_parameters", "require_backward_grad_sync")
)

PATCH = Patch(
    name="record_ddp",
    purpose="records DDP's gradient all_reduces, forward, backward and optimizer steps",
    lost_without="DDP modules, their buckets and the phases of a step are not recorded",
    uses=(
        "torch:ops.c10d.allreduce_.default",
        "torch:_C._after_autograd_keyset",
        "torch.autograd:Variable._execution_engine.queue_callback",
        f"{_DDP}._check_global_requires_backward_grad_sync",
        *FORWARD_USES,
    ),
    can_be_left_out=True,
)

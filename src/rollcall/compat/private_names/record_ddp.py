"""Used by record/hooks/ddp.py, record/hooks/reducer.py and record/cpp/recorder.cpp."""

from rollcall.compat.patch import Patch

_DDP = "torch.nn.parallel:DistributedDataParallel"

PATCH = Patch(
    name="record_ddp",
    purpose="records DDP's gradient all_reduces, forward, backward and optimizer steps",
    lost_without="DDP modules, their buckets and the phases of a step are not recorded",
    uses=(
        "torch:ops.c10d.allreduce_.default",
        "torch:_C._after_autograd_keyset",
        "torch.autograd:Variable._execution_engine.queue_callback",
        f"{_DDP}._check_global_requires_backward_grad_sync",
        f"{_DDP}.__init__<_comm_hooks>",
        f"{_DDP}.__init__<_module_parameters>",
        f"{_DDP}.__init__<require_backward_grad_sync>",
    ),
    can_be_left_out=True,
)

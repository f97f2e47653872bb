"""Used by initialization/process_group.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="torch_timeouts",
    purpose="gives a group torch's own time limit once all ranks are connected; closes all groups at the end",
    lost_without="rollcall.init fails",
    uses=(
        "torch.distributed.distributed_c10d:_get_default_timeout",
        "torch.distributed.distributed_c10d:_world.pg_map",
        "torch.distributed:ProcessGroup._device_types",
        "torch.distributed:ProcessGroup._get_backend",
        "torch.distributed:ProcessGroupGloo._set_default_timeout",
    ),
)

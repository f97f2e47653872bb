"""Used by record/hooks/process_group.py, works.py and groups.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="record_process_group",
    purpose="records every op that Python calls",
    lost_without="collectives, sends and receives, and new groups are not recorded",
    uses=(
        "torch.distributed:ProcessGroup.allreduce",
        "torch.distributed:ProcessGroup._allgather_base",
        "torch.distributed:ProcessGroup._reduce_scatter_base",
        "torch.distributed:Work.wait",
        "torch.distributed:Work.get_future",
        "torch.distributed:Work.is_completed",
        "torch.distributed:Reducer._set_forward_pass_work_handle",
        "torch.distributed:Work._source_rank",
        "torch.distributed:_broadcast_coalesced",
        "torch.distributed:ProcessGroup._start_coalescing",
        "torch.distributed:ProcessGroup._end_coalescing",
        "torch.distributed.distributed_c10d:_new_group_with_tag",
        "torch.distributed.distributed_c10d:_warn_not_in_group",
    ),
    can_be_left_out=True,
)

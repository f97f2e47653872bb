"""Used by shell/session.py."""

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="shell_groups",
    purpose="cancels a line of `rollcall shell` that hangs, and gives the next group another name",
    lost_without="Ctrl-C in `rollcall shell` does not end an op that waits",
    uses=(
        "torch.distributed.distributed_c10d:_abort_process_group",
        "torch.distributed.distributed_c10d:_world.group_count",
    ),
    tried_on=("torch 2.13",),
)

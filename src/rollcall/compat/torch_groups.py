"""The ranks of a process group, and a group by its name: torch has both in private tables only."""

from typing import Any, cast

from torch.distributed import distributed_c10d

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="torch_groups",
    purpose="knows the ranks of a group, and a group by its name",
    lost_without="recording stops at the first op",
    uses=(
        "torch.distributed.distributed_c10d:_world.pg_group_ranks",
        "torch.distributed.distributed_c10d:_resolve_process_group",
    ),
)


def ranks_of(group: Any) -> list[int]:
    """The ranks of a group, in its own order."""
    found = distributed_c10d._world.pg_group_ranks.get(group)
    return sorted(found, key=found.__getitem__) if found else list(range(group.size()))


def group_named(name: Any) -> Any:
    """The group of this name; a group itself is returned as it is."""
    return distributed_c10d._resolve_process_group(cast(Any, name)) if isinstance(name, str) else name

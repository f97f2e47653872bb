"""The process groups of this process, the ranks of one, and one by its name: torch has these in private tables."""

from typing import Any, cast

import torch.distributed as dist
from torch.distributed import distributed_c10d

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="torch_groups",
    purpose="knows the ranks of a group, a group by its name, and all groups at the end of a program",
    lost_without="functional collectives are recorded on the group of all ranks; only that group is closed at the end",
    uses=(
        "torch.distributed.distributed_c10d:_world.pg_map",
        "torch.distributed.distributed_c10d:_resolve_process_group",
    ),
)


def ranks_of(group: Any) -> list[int]:
    """The ranks of a group, in its own order."""
    try:
        return dist.get_process_group_ranks(group)
    except (KeyError, AttributeError):  # a group that was made without torch.distributed's functions
        return list(range(group.size()))


def name_of(group: Any) -> str | None:
    """None, or empty, of one that was made without torch.distributed's functions; None of what is no group."""
    try:
        return str(group.group_name)
    except (RuntimeError, AttributeError):
        return None


def group_named(name: Any) -> Any:
    """The group of this name; a group itself is returned as it is."""
    if not isinstance(name, str):
        return name
    resolve = getattr(distributed_c10d, "_resolve_process_group", None)
    return dist.group.WORLD if resolve is None else resolve(cast(Any, name))


def all_groups() -> list[Any]:
    if not dist.is_initialized():
        return []
    known = getattr(getattr(distributed_c10d, "_world", None), "pg_map", None)
    return [dist.group.WORLD] if known is None else list(known)

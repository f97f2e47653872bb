"""Gives a group torch's own time limit once all ranks are connected. Where a torch lacks a name, the group keeps the
limit that it was made with."""

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from rollcall.compat.patch import Patch

PATCH = Patch(
    name="torch_timeouts",
    purpose="gives a group torch's own time limit once all ranks are connected",
    lost_without="ops fail after the time that rollcall.init waits for ranks, not after torch's half hour",
    uses=(
        "torch.distributed.distributed_c10d:_get_default_timeout",
        "torch.distributed:ProcessGroup.set_timeout",
    ),
)


def default_limit(backend: str) -> timedelta | None:
    """torch's own limit for the ops of a backend; None where this torch does not tell."""
    ask = getattr(distributed_c10d, "_get_default_timeout", None)
    return None if ask is None else ask(dist.Backend(backend))


def limit_ops(group: Any, limit: timedelta) -> None:
    """Not by torch's _set_pg_timeout, which torch 2.15 deprecates."""
    if hasattr(group, "set_timeout"):
        group.set_timeout(limit)

"""Gives a group torch's own time limit once all ranks are connected, and longer ones while a rank stands in a debugger.
Where a torch lacks a name, the group keeps the limit that it was made with."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from rollcall.compat.patch import Patch
from rollcall.compat.torch_groups import all_groups

PATCH = Patch(
    name="torch_timeouts",
    purpose="gives a group torch's own time limit once all ranks are connected, a longer one while a rank is debugged",
    lost_without="ops fail after the time that rollcall.init waits for ranks; and while a rank is debugged",
    uses=(
        "torch.distributed.distributed_c10d:_get_default_timeout",
        "torch.distributed:ProcessGroup.set_timeout",
        "torch.distributed:ProcessGroup._get_backend",
        "torch.distributed:ProcessGroup._device_types",
        "torch.distributed:ProcessGroupGloo._Options._timeout",
    ),
)
_LONG = timedelta(days=7)  # nobody debugs for longer
_is_long = _is_always_long = False
_usual: dict[int, tuple[Any, timedelta]] = {}  # by id: groups with a longer limit now, and the one they had


def default_limit(backend: str) -> timedelta | None:
    """torch's own limit for the ops of a backend; None where this torch does not tell."""
    ask = getattr(distributed_c10d, "_get_default_timeout", None)
    return None if ask is None else ask(dist.Backend(backend))


def limit_ops(group: Any, limit: timedelta) -> None:
    """Not by torch's _set_pg_timeout, which torch 2.15 deprecates."""
    if hasattr(group, "set_timeout"):
        group.set_timeout(limit)


def wait_longer(always: bool = False) -> None:
    """Ops that begin from now on, on any group, also on one that is still to be made, may wait for days."""
    global _is_long, _is_always_long
    _is_long, _is_always_long = True, _is_always_long or always
    note_new_groups()


def wait_as_before() -> None:
    global _is_long
    if _is_always_long:
        return
    _is_long = False
    for group, limit in _usual.values():
        limit_ops(group, limit)
    _usual.clear()


def note_new_groups() -> None:
    """Called when a group was made."""
    for group in all_groups() if _is_long else ():
        limit = _limit_of(group)
        if id(group) not in _usual and limit is not None:
            _usual[id(group)] = group, limit
            limit_ops(group, _LONG)


def _limit_of(group: Any) -> timedelta | None:
    """None where this torch does not tell."""
    try:
        found = max(group._get_backend(torch.device(kind)).options._timeout for kind in group._device_types)
    except (AttributeError, RuntimeError, ValueError, TypeError):
        return None
    return found if isinstance(found, timedelta) else None

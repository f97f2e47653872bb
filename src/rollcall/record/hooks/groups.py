"""Functions that every rank calls, or every member of a group: they make groups."""

from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from rollcall.compat import torch_timeouts
from rollcall.record.hooks import sink
from rollcall.record.hooks.arguments import is_repeatable, numbers_of
from rollcall.record.hooks.patching import Hook, install, install_in
from rollcall.record.hooks.process_group import complete, enter, fail
from rollcall.record.hooks.sink import NON_MEMBER, WORLD, CallArgs
from rollcall.record.ring_format import OP

_MAKES_GROUPS = "_new_group_with_tag"  # new_group calls it, and other modules import new_group by name
_LOCAL_AT = {"new_group": 4, _MAKES_GROUPS: 5}  # the argument which says that only members call it


def install_all() -> None:
    if hasattr(distributed_c10d, _MAKES_GROUPS):
        install(distributed_c10d, _MAKES_GROUPS, _new_group_hook(_MAKES_GROUPS))
    else:
        install_in((dist, distributed_c10d, device_mesh), "new_group", _new_group_hook("new_group"))
    split = Hook("split_group", _before_split, _made, fail)
    install_in((dist, distributed_c10d, device_mesh), "split_group", split)
    init = Hook("init_process_group", _before_init, _world_made, fail)
    install_in((dist, distributed_c10d), "init_process_group", init)
    destroy = Hook("destroy_process_group", _before_destroy, complete)
    install_in((dist, distributed_c10d), "destroy_process_group", destroy)
    install(distributed_c10d, "_warn_not_in_group", Hook("a call of a non-member", _before_warning))


def _made(mark: int, result: Any) -> None:
    complete(mark, result)
    torch_timeouts.note_new_groups()


def _world_made(mark: int, result: Any) -> None:
    _made(mark, result)
    sink.current.world_made()


def _before_init(*_: Any) -> int | None:
    return enter("init", CallArgs(flags=0))


def _before_destroy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The end of all groups. A single one may be destroyed by some of its ranks alone, and nobody waits for them."""
    group = args[0] if args else kwargs.get("group")
    is_all = group is None or group is dist.group.WORLD
    return enter("destroy", CallArgs(flags=0)) if is_all and dist.is_initialized() else None


def _new_group_hook(name: str) -> Hook:
    local_at = _LOCAL_AT[name]

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        ranks = args[0] if args else kwargs.get("ranks")
        is_local = (len(args) > local_at and args[local_at]) or kwargs.get("use_local_synchronization", False)
        if not is_repeatable(ranks):  # None, for all ranks; or what only torch may read
            return None if is_local and ranks is not None else enter("new_group", CallArgs(flags=0))
        numbers = _numbers(ranks)
        group = tuple(sorted(numbers)) if is_local else WORLD
        return enter("new_group", CallArgs(splits=(numbers,), flags=0), group)

    return Hook("new_group", before, _made, fail)


def _numbers(ranks: Any) -> tuple[int, ...]:
    """Empty for what are no ranks: torch refuses them."""
    try:
        return numbers_of(ranks)
    except TypeError:
        return ()


def _before_split(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """All ranks of the parent call it, with the same split."""
    parent = args[0] if args else kwargs.get("parent_pg")
    split = args[1] if len(args) > 1 else kwargs.get("split_ranks")
    members = tuple(map(_numbers, split)) if is_repeatable(split) else ()
    group = parent if isinstance(parent, dist.ProcessGroup) else WORLD
    return enter("new_group", CallArgs(splits=members, flags=0), group)


def _before_warning(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    """torch warns of a call on a group that this rank is not a member of."""
    name = args[0].removesuffix("_into_tensor").removesuffix("_tensor").removesuffix("_single")
    sink.current.completed(sink.current.enter(OP.get(name, OP["barrier"]), NON_MEMBER, CallArgs(flags=0)))

"""Methods of ProcessGroup are replaced on the class: that sees every op that Python asks for, on every backend, with
all its options, for a few microseconds."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from rollcall.record.cpp import pen
from rollcall.record.hooks.arguments import METHODS, Reader
from rollcall.record.hooks.patching import during, replace
from rollcall.record.hooks.sink import STRANGE, WORLD, Seen, Told
from rollcall.record.ring_format import ASYNC, OP


class _Inside(threading.local):
    """What this thread is in."""

    op = False  # a recorded op
    objects = 0  # the length of the list of objects that it is passing around, if it is


inside = _Inside()


def _note_inside(is_in: bool) -> None:
    inside.op = is_in


_mark_inside: Callable[[bool], None] = _note_inside if pen is None else pen.inside
# By id: works that nobody has waited for yet, their marks, and whether the program waits for them when it likes.
_works: dict[int, tuple[Any, int, bool]] = {}
_UNKNOWN = (None, -1, False)
_UNREADABLE = Seen()
# Collectives of objects, and which argument is the list whose length must fit.
_OBJECTS = {"all_gather_object": 0, "broadcast_object_list": 0, "scatter_object_list": 1, "gather_object": 1}


def put_up() -> None:
    for name, (op, read) in METHODS.items():
        replace(dist.ProcessGroup, name, _op(OP[op], read))
    replace(dist.Work, "wait", _wait)
    replace(dist.Work, "get_future", _get_future)
    for module in (dist, distributed_c10d):
        for name, place in _OBJECTS.items():
            replace(module, name, _counting(place))
        replace(module, "new_group", _whole("new_group"))
        replace(module, "init_process_group", _whole("init"))
        replace(module, "_broadcast_coalesced", _broadcast_coalesced)
    replace(distributed_c10d, "_warn_not_in_group", _strange)


def members(group: Any) -> list[int]:
    """The ranks of a group, in its own order."""
    found = distributed_c10d._world.pg_group_ranks.get(group)
    return sorted(found, key=found.__getitem__) if found else list(range(group.size()))


def _op(op: int, read: Reader) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def recorded(group: Any, *args: Any, **kwargs: Any) -> Any:
            listener = Told.listener
            try:
                seen = read(args, kwargs)
            except Exception:  # arguments that nobody has foreseen: torch will judge them, not we
                seen = _UNREADABLE
            mark = listener.enter(op, group, seen)
            _mark_inside(True)
            try:
                work = original(group, *args, **kwargs)
            except BaseException:
                listener.failed(mark)
                raise
            finally:
                _mark_inside(False)
            if work is None:
                listener.completed(mark)
            elif seen.flags & ASYNC:
                listener.issued(mark)
                _keep(work, mark)
            else:  # torch waits for it at once
                _works[id(work)] = (work, mark, False)
            return work

        return recorded

    return make


def _keep(work: Any, mark: int) -> None:
    """Weakly: what nobody waits for, goes, as it would without us."""
    key = id(work)

    def drop(_: Any) -> None:
        _works.pop(key, None)
        Told.listener.dropped(mark)

    _works[key] = (weakref.ref(work, drop), mark, True)


def _wait(original: Any) -> Any:
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        _, mark, is_async = _works.pop(id(work), _UNKNOWN)
        if mark < 0:
            return original(work, *args, **kwargs)
        if is_async:
            Told.listener.waiting(mark)
        try:
            result = original(work, *args, **kwargs)
        except BaseException:
            if not is_async:
                Told.listener.issued(mark)
            Told.listener.failed(mark)
            raise
        Told.listener.completed(mark)
        return result

    return wait


def _get_future(original: Any) -> Any:
    """Who takes the future, as DDP's communication hooks do, waits by it."""

    def get_future(work: Any) -> Any:
        _, mark, _ = _works.pop(id(work), _UNKNOWN)
        future = original(work)
        if mark >= 0:
            Told.listener.waiting(mark)
            future.add_done_callback(lambda _: Told.listener.completed(mark))
        return future

    return get_future


def _counting(place: int) -> Callable[[Any], Any]:
    """Let the ops underneath know how many objects the caller's list has."""

    def make(original: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            given = args[place] if len(args) > place else None
            inside.objects = len(given) if isinstance(given, list) else 0
            try:
                return original(*args, **kwargs)
            finally:
                inside.objects = 0

        return counted

    return make


_LOCAL_AT = 4  # which argument of new_group says that only its members call it


def _whole(op: str) -> Callable[[Any], Any]:
    """A function of torch.distributed that all ranks call, from its beginning to its end."""

    def make(original: Any) -> Any:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            ranks = args[0] if args else kwargs.get("ranks")
            splits = (tuple(ranks),) if op == "new_group" and ranks is not None else ()
            is_local = (len(args) > _LOCAL_AT and args[_LOCAL_AT]) or kwargs.get("use_local_synchronization", False)
            group = tuple(sorted(splits[0])) if splits and is_local else WORLD
            with during(op, Seen(splits=splits, flags=0), group):
                return original(*args, **kwargs)

        return recorded

    return make


def _broadcast_coalesced(original: Any) -> Any:
    """Of many tensors, in C++: DDP sends its buffers so, before each forward."""

    def broadcast(group: Any, tensors: Any, size_bytes: Any, src: int = 0) -> Any:
        with during("broadcast", Seen(tuple(tensors), src, flags=0), group):
            return original(group, tensors, size_bytes, src)

    return broadcast


def _strange(original: Any) -> Any:
    """torch's own word for a call on a group that this rank is not in."""

    def warn(name: str) -> Any:
        op = OP.get(name.removesuffix("_into_tensor").removesuffix("_tensor").removesuffix("_single"), OP["barrier"])
        Told.listener.completed(Told.listener.enter(op, STRANGE, Seen(flags=0)))
        return original(name)

    return warn

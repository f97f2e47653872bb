"""Hooks on the methods of ProcessGroup, which every op that Python calls passes, on every backend, with its options;
and on functions of torch.distributed that every rank calls."""

import weakref
from typing import Any

import torch.distributed as dist
from torch.distributed import device_mesh, distributed_c10d

from rollcall.record.hooks import sink
from rollcall.record.hooks.arguments import METHODS, Reader
from rollcall.record.hooks.patching import Hook, guarded, install
from rollcall.record.hooks.sink import NON_MEMBER, OFF, WORLD, CallArgs, this_thread
from rollcall.record.ring_format import ASYNC, OP

_State = tuple[int, int]  # of an op: its mark, and whether it is async
_works: dict[int, tuple[Any, _State]] = {}  # by id: works that have not been waited for
_UNREADABLE = CallArgs()
# Collectives of objects, and which argument is the list whose length must be the same on all ranks. Of gather_object
# and scatter_object_list only the root's list counts, and torch checks that itself.
_OBJECT_LISTS = {"all_gather_object": 0, "broadcast_object_list": 0}
_LOCAL_AT = 4  # the argument of new_group which says that only members call it


def install_all() -> None:
    for name, (op, read) in METHODS.items():
        install(dist.ProcessGroup, name, _op_hook(op, read))
    install(dist.Work, "wait", Hook("wait", _before_wait, _after_wait, _failed_wait))
    install(dist.Work, "is_completed", Hook("is_completed", _before_is_completed, _after_is_completed))
    install(dist.Reducer, "_set_forward_pass_work_handle", Hook("join", _before_handing_over))
    install(dist.Work, "get_future", Hook("get_future", _before_get_future, _after_get_future))
    # device_mesh has a name of its own for new_group. It comes first, while that is the original.
    install(device_mesh, "new_group", Hook("new_group", _before_new_group, _complete, _fail))
    for module in (dist, distributed_c10d):
        for name, place in _OBJECT_LISTS.items():
            install(module, name, _object_list_hook(name, place))
        install(module, "new_group", Hook("new_group", _before_new_group, _complete, _fail))
        install(module, "init_process_group", Hook("init_process_group", _before_init, _complete, _fail))
        install(module, "_broadcast_coalesced", Hook("broadcast", _before_broadcast, _complete, _fail))
    install(distributed_c10d, "_warn_not_in_group", Hook("a call of a non-member", _before_warning))


def enter(op: str, call: CallArgs, group: Any = WORLD) -> int | None:
    """The mark of something that ranks do together; None where nothing is recorded."""
    mark = sink.current.enter(OP[op], group, call)
    return mark if mark >= 0 else None


def _complete(mark: int, _: Any) -> None:
    sink.current.completed(mark)


def _fail(mark: int) -> None:
    sink.current.failed(mark)


def _op_hook(name: str, read: Reader) -> Hook:
    """For every op: each look-up counts."""
    op = OP[name]

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _State | None:
        current = sink.current
        if current is OFF:
            return None
        try:
            call = read(args, kwargs)
        except Exception:  # arguments that we do not know: torch will say whether they are right
            call = _UNREADABLE
        mark = current.enter(op, args[0], call)
        if mark < 0:
            return None
        current.set_in_op(True)
        return mark, call[5] & ASYNC

    def after(state: _State, work: Any) -> None:
        current = sink.current
        current.set_in_op(False)
        if work is None:
            current.completed(state[0])
        elif state[1]:
            current.issued(state[0])
            if this_thread.forgets_handles:
                _complete_for_torch(state[0])
            else:
                _keep(work, state)
        else:  # torch waits for it at once
            _works[id(work)] = (work, state)

    def failed(state: _State) -> None:
        sink.current.set_in_op(False)
        sink.current.failed(state[0])

    return Hook(name, before, after, failed)


def _keep(work: Any, state: _State) -> None:
    """By weak reference, so that recording does not keep the handle alive."""
    key = id(work)

    def drop(_: Any) -> None:
        _works.pop(key, None)
        sink.current.dropped(state[0])

    _works[key] = (weakref.ref(work, drop), state)


def _before_wait(args: tuple[Any, ...], _: dict[str, Any]) -> _State | None:
    found = _works.pop(id(args[0]), None)
    if found is None:
        return None
    state = found[1]
    if state[1]:
        sink.current.waiting(state[0])
    return state


def _after_wait(state: _State, _: Any) -> None:
    sink.current.completed(state[0])


def _failed_wait(state: _State) -> None:
    mark, is_async = state
    if not is_async:
        sink.current.issued(mark)
    sink.current.failed(mark)


def _before_is_completed(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    return args[0] if id(args[0]) in _works else None


def _after_is_completed(work: Any, is_completed: bool) -> None:
    """A program that asks until the answer is yes has waited."""
    if is_completed and (state := _before_wait((work,), {})) is not None:
        sink.current.completed(state[0])


def _before_handing_over(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    """DDP's join() leaves the handle to its reducer, which waits for it in C++ at the end of the backward."""
    found = _works.pop(id(args[1]), None) if len(args) > 1 else None
    if found is not None:
        _complete_for_torch(found[1][0])


def _complete_for_torch(mark: int) -> None:
    """Of a handle that torch keeps to itself: the program has nothing to wait for, and sees no end."""
    sink.current.waiting(mark)
    sink.current.completed(mark)


def _before_get_future(args: tuple[Any, ...], _: dict[str, Any]) -> int | None:
    found = _works.pop(id(args[0]), None)
    return None if found is None else found[1][0]


def _after_get_future(mark: int, future: Any) -> None:
    """Code that takes the future, such as DDP's communication hooks, waits for that."""
    sink.current.waiting(mark)
    future.add_done_callback(lambda _: guarded("get_future", _complete, mark, None))


def _object_list_hook(name: str, place: int) -> Hook:
    """Tells the ops inside how many objects the caller's list has."""

    def before(args: tuple[Any, ...], _: dict[str, Any]) -> int:
        given = args[place] if len(args) > place else None
        this_thread.object_count = len(given) if isinstance(given, list) else 0
        return this_thread.object_count

    def after(*_: Any) -> None:
        this_thread.object_count = 0

    return Hook(name, before, after, after)


def _before_init(*_: Any) -> int | None:
    return enter("init", CallArgs(flags=0))


def _before_new_group(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    ranks = args[0] if args else kwargs.get("ranks")
    if ranks is None:
        return enter("new_group", CallArgs(flags=0))
    is_local = (len(args) > _LOCAL_AT and args[_LOCAL_AT]) or kwargs.get("use_local_synchronization", False)
    return enter("new_group", CallArgs(splits=(tuple(ranks),), flags=0), tuple(sorted(ranks)) if is_local else WORLD)


def _before_broadcast(args: tuple[Any, ...], _: dict[str, Any]) -> int | None:
    """Of many tensors, in C++: DDP sends its buffers so, before each forward."""
    group, tensors, _, *source = args
    return enter("broadcast", CallArgs(tuple(tensors), source[0] if source else 0, flags=0), group)


def _before_warning(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    """torch warns of a call on a group that this rank is not a member of."""
    name = args[0].removesuffix("_into_tensor").removesuffix("_tensor").removesuffix("_single")
    sink.current.completed(sink.current.enter(OP.get(name, OP["barrier"]), NON_MEMBER, CallArgs(flags=0)))

"""Hooks on the methods of ProcessGroup, which every op that Python calls passes, on every backend, with its options."""

from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from rollcall.record.hooks import sink, works
from rollcall.record.hooks.arguments import METHODS, Reader, is_repeatable
from rollcall.record.hooks.patching import Hook, install, install_in, leave_to_program
from rollcall.record.hooks.sink import OFF, WORLD, CallArgs, this_thread
from rollcall.record.hooks.works import State, unwaited
from rollcall.record.ring_format import ASYNC, OP

_UNREADABLE = CallArgs()
_FROM_ANY = "recv_anysource"
# Collectives of objects, and which argument is the list whose length must be the same on all ranks. Of gather_object
# and scatter_object_list only the root's list counts, and torch checks that itself.
_OBJECT_LISTS = {"all_gather_object": 0, "broadcast_object_list": 0}
# By id of a group: the marks of the ops since _start_coalescing, which begin together at _end_coalescing.
batches: dict[int, list[int]] = {}


def install_all() -> None:
    for name, (op, read) in METHODS.items():
        install(dist.ProcessGroup, name, _from_any_hook(read) if name == _FROM_ANY else _op_hook(op, read))
    install(dist.Reducer, "_set_forward_pass_work_handle", Hook("join", _before_handing_over))
    install(dist.ProcessGroup, "_start_coalescing", Hook("_start_coalescing", _before_start, _after_start))
    install(dist.ProcessGroup, "_end_coalescing", Hook("_end_coalescing", _before_end, _after_end, _failed_end))
    for name, place in _OBJECT_LISTS.items():
        install_in((dist, distributed_c10d), name, _object_list_hook(name, place))
    broadcast = Hook("broadcast of buffers", _before_broadcast, complete, fail)
    install_in((dist, distributed_c10d), "_broadcast_coalesced", broadcast)


def enter(op: str, call: CallArgs, group: Any = WORLD) -> int | None:
    """The mark of something that ranks do together; None where nothing is recorded."""
    mark = sink.current.enter(OP[op], group, call)
    return mark if mark >= 0 else None


def complete(mark: int, _: Any) -> None:
    """What follows a hook whose call returns when the op is over."""
    sink.current.completed(mark)


def fail(mark: int) -> None:
    sink.current.failed(mark)


def _op_hook(name: str, read: Reader) -> Hook:
    """Makes the hook of an op. It runs for every op, so each look-up counts."""
    op = OP[name]

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> State | None:
        current = sink.current
        if current is OFF or not args:  # Python refuses a call without arguments
            return None
        try:
            call = read(args, kwargs)
        except Exception as error:  # arguments that we do not know: torch will say whether they are right
            leave_to_program(error)
            call = _UNREADABLE
        if batches and id(args[0]) in batches:
            return _enter_batch(op, args[0], call)
        mark = current.enter(op, args[0], call)
        if mark < 0:
            return None
        current.set_in_op(True)
        return mark, call[5] & ASYNC

    def after(state: State, work: Any) -> None:
        current = sink.current
        current.set_in_op(False)
        if state[1]:
            current.issued(state[0])
        if len(state) > 2:  # the work of the batch counts
            return
        if work is None:
            current.completed(state[0])
        elif state[1]:
            if this_thread.forgets_handles:
                _complete_for_torch(state[0])
            else:
                works.keep(work, state)
        else:
            works.keep_until_next(work, state)  # torch waits for it at once

    def failed(state: State) -> None:
        sink.current.set_in_op(False)
        sink.current.failed(state[0])

    return Hook(name, before, after, failed)


_IN_BATCH = 1


def _enter_batch(op: int, group: Any, call: CallArgs) -> State | None:
    """Nothing is sent until the batch ends, and what is waited for then is the batch."""
    mark = sink.current.enter(op, group, call._replace(flags=call.flags | ASYNC))
    if mark < 0:
        return None
    sink.current.set_in_op(True)
    batches[id(group)].append(mark)
    return mark, ASYNC, _IN_BATCH


def _before_start(args: tuple[Any, ...], _: dict[str, Any]) -> int | None:
    return id(args[0]) if args else None


def _after_start(key: int, _: Any) -> None:
    batches[key] = []


def _before_handing_over(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    """DDP's join() leaves the handle to its reducer, which waits for it in C++ at the end of the backward."""
    found = unwaited.pop(id(args[1]), None) if len(args) > 1 else None
    if found is not None:
        _complete_for_torch(found[1][0])


def _complete_for_torch(mark: int) -> None:
    """Completes an op whose handle torch keeps to itself: the program has nothing to wait for, and sees no end."""
    sink.current.waiting(mark)
    sink.current.completed(mark)


def _before_end(args: tuple[Any, ...], _: dict[str, Any]) -> list[int] | None:
    return (batches.pop(id(args[0]), None) if args else None) or None


def _after_end(marks: list[int], work: Any) -> None:
    if work is None:
        sink.current.completed(*marks)
    else:
        works.keep(work, (marks[0], ASYNC, *marks[1:]))


def _failed_end(marks: list[int]) -> None:
    for mark in marks:
        sink.current.failed(mark)


def _from_any_hook(read: Reader) -> Hook:
    hook = _op_hook("recv", read)

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[State, Any] | None:
        state = hook.before(args, kwargs)
        return None if state is None else (state, args[0])

    def after(state: tuple[State, Any], work: Any) -> None:
        hook.after(state[0], work)
        if work is not None:
            works.keep_from_any(work, state[0][0], state[1])

    return Hook("recv", before, after, lambda state: hook.failed(state[0]))


def _object_list_hook(name: str, place: int) -> Hook:
    """Tells the ops inside how many objects the caller's list has."""

    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        given = args[place] if len(args) > place else kwargs.get("object_list")
        this_thread.object_count = len(given) if isinstance(given, list) else 0
        sink.current.set_object_count(this_thread.object_count)
        return this_thread.object_count

    def after(*_: Any) -> None:
        this_thread.object_count = 0
        sink.current.set_object_count(0)

    return Hook(name, before, after, after)


def _before_broadcast(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Records a broadcast of many tensors in C++: DDP sends its buffers so, before each forward."""
    given = {"src": 0, **dict(zip(("process_group", "tensors", "buffer_size", "src"), args, strict=False)), **kwargs}
    tensors = given.get("tensors")
    call = CallArgs(tuple(tensors) if is_repeatable(tensors) else (), given["src"], flags=0)
    return enter("broadcast", call, given.get("process_group", WORLD))

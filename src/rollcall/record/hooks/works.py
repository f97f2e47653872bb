"""The handles of ops, on which a program waits, or which it asks whether the op is complete."""

import weakref
from functools import partial
from typing import Any

import torch.distributed as dist

from rollcall.record.hooks import sink
from rollcall.record.hooks.patching import Hook, guarded, install, leave_to_program

# Of a work: the mark of its op, and whether that is async. That of a batch has the marks of its other ops after these.
State = tuple[int, ...]
# By id: works that have not been waited for, their states, and what is called when they are deleted.
unwaited: dict[int, tuple[Any, ...]] = {}
_from_any: dict[int, tuple[Any, int, Any]] = {}  # by id: works of receives from any rank, their marks and groups


_hooked: set[type] = set()  # classes of works
newest = [0]  # the id of the newest work whose op is not async
_Work = dist.Work  # looked up once


def install_all() -> None:
    hook_class(dist.Work)


def hook_class(kind: type) -> None:
    """A backend may have a class of its own, with methods in place of torch's."""
    if kind in _hooked:
        return
    _hooked.add(kind)
    for name, hook in _hooks().items():
        if _is_method(vars(kind).get(name)):
            install(kind, name, hook)
    for base in kind.__bases__:
        if issubclass(base, dist.Work):
            hook_class(base)


def _is_method(found: Any) -> bool:
    """A class of the program may have something else under this name, such as a property."""
    return callable(found) and not isinstance(found, staticmethod | classmethod)


def _hooks() -> dict[str, Hook]:
    """By name of a method."""
    return {
        "wait": Hook("wait", _before_wait, _after_wait, _failed_wait),
        "is_completed": Hook("is_completed", _before_poll, _after_poll),
        "is_success": Hook("is_success", _before_poll, _after_poll),
        "synchronize": Hook("synchronize", _before_synchronize, _after_synchronize),
        "block_current_stream": Hook("block_current_stream", _before_synchronize, _after_synchronize),
        "result": Hook("result", _before_result, _after_result),
        "_source_rank": Hook("_source_rank", _before_source_rank, _after_source_rank),
        "get_future": Hook("get_future", _before_get_future, _after_get_future),
    }


def keep(work: Any, state: State) -> None:
    """By weak reference, so that recording does not keep the handle alive. The callbacks are functions of C: Python
    ignores what a callback raises, and another thread may throw an error into one that is written in Python."""
    key = id(work)
    hook_class(type(work))
    ends = [weakref.ref(work, sink.current.on_drop(mark)) for mark in _marks(state)]
    unwaited[key] = (weakref.ref(work, partial(unwaited.pop, key)), state, *ends)


def keep_until_next(work: Any, state: State) -> None:
    """Of an op that is not async: torch waits at once, so a weak reference would cost more than it is worth. A program
    that calls the method itself need not wait: the handle before this one is the program's alone again."""
    if type(work) is not _Work:
        hook_class(type(work))
    before = unwaited.get(newest[0])
    if before is not None and type(before[0]) is not weakref.ref:
        keep(*before)
    newest[0] = id(work)
    unwaited[newest[0]] = (work, state)


def keep_from_any(work: Any, mark: int, group: Any) -> None:
    """Keeps the work of a receive from any rank: the rank is known when dist.recv, or the program, asks the work."""
    key = id(work)
    _from_any[key] = weakref.ref(work, partial(_from_any.pop, key)), mark, group


def _marks(state: State) -> State:
    return (state[0], *state[2:])


def _work(args: tuple[Any, ...]) -> Any:
    """What a method is called on. A call without it is refused by Python."""
    return args[0] if args else None


def _before_wait(args: tuple[Any, ...], _: dict[str, Any]) -> State | None:
    found = unwaited.pop(id(_work(args)), None)
    if found is None:
        return None
    state: State = found[1]
    if state[1]:
        for mark in state[:1] if len(state) == 2 else _marks(state):
            sink.current.waiting(mark)
    return state


def _after_wait(state: State, _: Any) -> None:
    sink.current.completed(state[0], *state[2:])


def _failed_wait(state: State) -> None:
    for mark in _marks(state):
        if not state[1]:
            sink.current.issued(mark)
        sink.current.failed(mark)


def _before_poll(args: tuple[Any, ...], _: dict[str, Any]) -> int | None:
    key = id(_work(args))
    return key if key in unwaited else None


def _after_poll(key: int, is_complete: bool) -> None:
    """A program that polls knows without waiting that the op is complete."""
    found = unwaited.pop(key, None) if is_complete else None
    if found is not None:
        sink.current.polled(*_marks(found[1]))


def _before_synchronize(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The stream of a GPU waits for the op from now on: the same as wait()."""
    found = unwaited.get(id(_work(args)))
    if found is None:
        return None
    return _before_wait(args, kwargs) if sink.current.is_on_device(found[1][0]) else args[0]


def _after_synchronize(state: Any, _: Any) -> None:
    """On a CPU this need not have waited for anything: the program knows what is_completed says, which is hooked."""
    if isinstance(state, tuple):
        _after_wait(state, None)
    elif id(state) in unwaited:
        state.is_completed()


def _before_result(args: tuple[Any, ...], _: dict[str, Any]) -> Any:
    work = _work(args)
    return work if id(work) in unwaited else None


def _after_result(work: Any, _: Any) -> None:
    """Records that the op is over, but not for a GPU, where result() waits for nothing."""
    found = unwaited.get(id(work))
    if found is not None and not sink.current.is_on_device(found[1][0]):
        work.is_completed()


def _before_source_rank(args: tuple[Any, ...], _: dict[str, Any]) -> tuple[int, Any] | None:
    found = _from_any.pop(id(_work(args)), None)
    return None if found is None else found[1:]


def _after_source_rank(state: tuple[int, Any], source: int) -> None:
    sink.current.received_from(*state, source)


def _before_get_future(args: tuple[Any, ...], _: dict[str, Any]) -> State | None:
    found = unwaited.pop(id(_work(args)), None)
    return None if found is None else found[1]


def _after_get_future(state: State, future: Any) -> None:
    """Code that takes the future, such as DDP's communication hooks, waits for that."""
    for mark in _marks(state):
        sink.current.waiting(mark)
    if future.done():  # torch would only print what a callback raises
        _after_future(state, future)
    else:
        future.add_done_callback(lambda done: guarded("get_future", _after_future, state, done))


def _after_future(state: State, future: Any) -> None:
    """The value of a future whose op failed raises that error."""
    try:
        future.value()
    except Exception as error:
        leave_to_program(error)
        _failed_wait(state)
    else:
        _after_wait(state, None)

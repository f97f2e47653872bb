"""The interface between hooks and recorders. Hooks are installed once per host, before ranks are forked; each rank then
sets `current` to its recorder. Python's and C++'s recorders are both a `Sink`: no hook knows which one it calls."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from rollcall.record.ring_format import ASYNC, OP

PHASE = OP["phase"]
NO_RECORD = -1  # the mark of a call that was not recorded
WORLD = None  # in place of a group: all ranks. A tuple stands for these ranks, whose group does not exist yet
NON_MEMBER = object()  # in place of a group that this rank is not a member of


class CallArgs(NamedTuple):  # made for every op: a dataclass takes three times as long
    """What one op is called with. `peer` is a rank of the group: of a send, a receive, or the root."""

    tensors: tuple[torch.Tensor, ...] = ()
    peer: int = -1
    tag: int = 0
    reduce: int = 0
    splits: tuple[Any, ...] = ()
    flags: int = ASYNC  # of the ring format


class Sink(Protocol):
    """What hooks call. `enter` and the `begin_…` methods return a mark, which the later calls name."""

    def enter(self, op: int, group: Any, call: CallArgs) -> int: ...

    def all_reduce_options(self, options: Any) -> tuple[int, int]: ...

    def set_object_count(self, count: int) -> None: ...

    def issued(self, mark: int) -> None: ...

    def waiting(self, mark: int) -> None: ...

    def completed(self, mark: int, *others: int) -> None: ...

    def polled(self, *marks: int) -> None: ...

    def is_on_device(self, mark: int) -> bool: ...

    def received_from(self, mark: int, group: Any, source: int) -> None: ...

    def failed(self, mark: int) -> None: ...

    def dropped(self, mark: int) -> None: ...

    def on_drop(self, mark: int) -> Callable[[object], object]: ...

    def begin_phase(self, name: str, op: int = PHASE, expected: int = 0) -> int: ...

    def end_phase(self, mark: int) -> None: ...

    def begin_forward(self, ddp: Any) -> int: ...

    def begin_step(self, optimizer: Any) -> None: ...

    def end_step(self, optimizer: Any) -> None: ...

    def watch_reducer(self, group: str, count_gradients: Callable[[Any], int]) -> None: ...

    def fail_buckets(self) -> None: ...

    def world_made(self) -> None: ...

    def set_in_op(self, is_in_op: bool) -> None: ...

    def is_in_op(self) -> bool: ...

    def signal_sent(self, process: int, number: int) -> None: ...

    def exiting(self, code: int) -> None: ...

    def turn_off(self, why: str = "") -> None: ...


class _Off:
    """Records nothing."""

    def enter(self, op: int, group: Any, call: CallArgs) -> int:
        return NO_RECORD

    def begin_phase(self, name: str, op: int = PHASE, expected: int = 0) -> int:
        return NO_RECORD

    def begin_forward(self, ddp: Any) -> int:
        return NO_RECORD

    def is_in_op(self) -> bool:
        return False

    def is_on_device(self, mark: int) -> bool:
        return False

    def all_reduce_options(self, options: Any) -> tuple[int, int]:
        return 0, 0

    def on_drop(self, mark: int) -> Callable[[object], object]:
        return id  # a function of C that does nothing

    def ignore(self, *_: Any) -> None:
        pass

    issued = waiting = completed = polled = received_from = failed = dropped = ignore
    end_phase = begin_step = end_step = watch_reducer = fail_buckets = world_made = ignore
    set_object_count = set_in_op = signal_sent = exiting = turn_off = ignore


class _Thread(threading.local):
    """What this thread is doing."""

    forgets_handles = False  # torch itself makes async ops, and does not wait for them
    object_count = 0  # the length of the list that a collective of objects passes around, while it runs


OFF = _Off()
this_thread = _Thread()
current: Sink = OFF


def use(sink: Sink) -> None:
    """From now on, hooks of this process call this sink."""
    global current
    current = sink

"""Who is told what the hooks see. They are put up once per host, before ranks are forked; each rank then listens."""

from typing import Any, NamedTuple, Protocol

import torch

from rollcall.record.ring_format import ASYNC, OP

PHASE = OP["phase"]
NOBODY = -1  # the mark of an op that nobody listens to
WORLD = None  # in place of a group: all ranks; a tuple: those ranks, who have none yet
STRANGE = object()  # in place of a group that this rank is not in


class Seen(NamedTuple):  # made for every op: a dataclass takes three times as long
    """What one op is about. `peer` is a rank of the group: of a send, a receive, or the root."""

    tensors: tuple[torch.Tensor, ...] = ()
    peer: int = -1
    tag: int = 0
    reduce: int = 0
    splits: tuple[Any, ...] = ()
    flags: int = ASYNC  # as the ring has them


class Listener(Protocol):
    """`enter` returns a mark that the later calls name."""

    def enter(self, op: int, group: Any, seen: Seen) -> int: ...

    def issued(self, mark: int) -> None: ...

    def waiting(self, mark: int) -> None: ...

    def completed(self, mark: int, *others: int) -> None: ...

    def failed(self, mark: int) -> None: ...

    def dropped(self, mark: int) -> None: ...

    def begin_phase(self, name: str, op: int = PHASE, expected: int = 0) -> int: ...

    def end_phase(self, mark: int) -> None: ...

    def sends_signal(self, process: int, number: int) -> None: ...

    def leaves(self, code: int) -> None: ...


class _Nobody:
    def enter(self, op: int, group: Any, seen: Seen) -> int:
        return NOBODY

    def begin_phase(self, name: str, op: int = PHASE, expected: int = 0) -> int:
        return NOBODY

    def ignore(self, *_: Any) -> None:
        pass

    issued = waiting = completed = failed = dropped = end_phase = sends_signal = leaves = ignore


class Told:
    """The one who listens in this process."""

    listener: Listener = _Nobody()


def listen(listener: Listener) -> None:
    Told.listener = listener

"""When ops on a GPU were over. The host only queues them; events tell, which the sampler asks later, so that nobody is
made to wait."""

from collections import deque
from time import monotonic_ns
from typing import Any

import torch

from rollcall.record.ring import Ring

_MOST_PENDING = 4096  # of a GPU that hangs, more would tell no more


class DeviceClock:
    """Turns events of the current stream into times of the host's clock."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._pending: deque[tuple[tuple[int, ...], Any]] = deque(maxlen=_MOST_PENDING)
        self._free: list[Any] = []  # events to use again: to make one takes longer than to record it
        self._base: tuple[Any, int] | None = None

    def note(self, marks: tuple[int, ...]) -> None:
        """The current stream waits for these ops now: what it passes next comes after them."""
        if not torch.cuda.is_current_stream_capturing():
            event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._pending.append((marks, event))

    @property
    def is_used(self) -> bool:
        return self._base is not None or bool(self._pending)

    def settle(self) -> None:
        """Write down what is over by now. Called from the sampler's thread, and once at the end."""
        while self._pending and self._pending[0][1].query():
            marks, event = self._pending.popleft()
            base, base_ns = self._base or self._begin()
            over_ns = base_ns + int(base.elapsed_time(event) * 1e6)
            for mark in marks:
                self._ring.completed(mark, over_ns)
            self._free.append(event)

    def _begin(self) -> tuple[Any, int]:
        """An event on a stream that nobody else uses, so that waiting for it waits for nothing."""
        base = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        base.record(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        base.synchronize()
        self._base = base, monotonic_ns()
        return self._base

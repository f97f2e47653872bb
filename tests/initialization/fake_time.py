"""A time for tests that need not wait."""

from collections.abc import Callable

from rollcall.initialization.waiting import TimeSource


class FakeTime:
    """A time that passes only while somebody sleeps, and what happens at certain times."""

    def __init__(self) -> None:
        self.now = 0.0
        self.clock = TimeSource(lambda: self.now, self._sleep)
        self._events: list[tuple[float, Callable[[], object]]] = []

    def at(self, time_s: float, event: Callable[[], object]) -> None:
        self._events.append((time_s, event))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        while self._events and self._events[0][0] <= self.now:
            self._events.pop(0)[1]()

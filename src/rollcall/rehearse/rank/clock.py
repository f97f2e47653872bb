"""The clock of a rehearsed rank: each read advances it by a millisecond, and each sleep by its length.

Programs branch on the time, for example to choose how often to save. Real time would differ in each pass; with this
clock they decide the same in each pass, and on all ranks.
"""

import time
from typing import Any

_TICK_NS = 10**6
_MOST_SLEEP_S = 0.01
_CLOCKS = ("monotonic", "perf_counter", "process_time", "thread_time")


class Clock:
    def __init__(self, began_ns: int) -> None:
        self._began_ns = began_ns
        self._now_ns = 0

    def read_ns(self) -> int:
        """Since the program began."""
        self._now_ns += _TICK_NS
        return self._now_ns

    def read(self) -> float:
        return self.read_ns() / 1e9

    def date_ns(self) -> int:
        return self._began_ns + self.read_ns()

    def date(self) -> float:
        return self.date_ns() / 1e9

    def sleep(self, seconds: float) -> None:
        """Sleeps for a moment only, for other threads and processes of the rank: no other rank acts meanwhile."""
        self._now_ns += int(seconds * 1e9)
        _sleep(min(seconds, _MOST_SLEEP_S))


_sleep = time.sleep


def install(began_ns: int) -> None:
    """Modules that have imported a function of `time` by name before, such as Python's queues, keep the real one."""
    clock = Clock(began_ns)
    module: Any = time  # the type checker knows nothing of replaced functions
    for name in _CLOCKS:
        setattr(module, name, clock.read)
        setattr(module, f"{name}_ns", clock.read_ns)
    module.time, module.time_ns, module.sleep = clock.date, clock.date_ns, clock.sleep

"""How far the clocks of a host are ahead of the launcher's, measured during the run by the answers to pings."""

import time
from dataclasses import dataclass, field

_WINDOW_NS = 10_000_000_000
_FINE_NS = 500_000
_FIRST_ANSWERS = 16
_MOST_READINGS = 128


@dataclass
class ClockOffset:
    """A host's clocks. Its answer was given at some moment between question and receipt: quick answers are the most
    precise."""

    offset_ns: int = 0  # of the wall clock, for what people read
    error_ns: int | None = None
    answers: int = 0
    # Of the monotonic clock, for what is recorded: (when by ours, offset, error), the best of each stretch of time.
    # Several of them, since clocks drift.
    readings: list[tuple[int, int, int]] = field(default_factory=list)

    def note(self, sent_ns: int, its_wall_ns: int, its_monotonic_ns: int) -> None:
        """An answer has come: to a ping sent at this time of our monotonic clock."""
        now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        error_ns = (now_ns - sent_ns) // 2
        self.answers += 1
        if self.error_ns is None or error_ns < self.error_ns:
            self.offset_ns, self.error_ns = its_wall_ns - (wall_ns - error_ns), error_ns
        at_ns = now_ns - error_ns
        reading = (at_ns, its_monotonic_ns - at_ns, error_ns)
        if not self.readings or at_ns - self.readings[-1][0] > _WINDOW_NS:
            self.readings.append(reading)
        elif error_ns < self.readings[-1][2]:
            self.readings[-1] = reading
        if len(self.readings) > _MOST_READINGS:  # of a long run, every other will do
            del self.readings[1:-1:2]

    @property
    def is_coarse(self) -> bool:
        """Nothing precise is known yet, and asking again at once may help: a busy host answers late only sometimes."""
        return self.answers < _FIRST_ANSWERS and self.error_ns is not None and self.error_ns > _FINE_NS

"""Ranks that somebody stopped (SIGSTOP): everyone waits for them, and no error ever comes.

Time is counted in our own looks, not by the clock: where a scheduler suspends a whole job, we are stopped, too.
"""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_EVERY_S = 0.5
_WARN_AFTER = 6  # looks
_END_AFTER = 24


class StoppedRanks:
    """Looks at the state of processes now and then."""

    def __init__(self) -> None:
        self._next_look = 0.0
        self._stopped: dict[int, int] = {}  # by pid: in how many looks in a row
        self._causes: dict[int, str] = {}

    def look(self, pids: Iterable[int]) -> Iterator[tuple[int, str]]:
        """The processes that have been stopped for long: with a warning at first, then with none to be ended."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _EVERY_S
        self._stopped = {pid: self._stopped.get(pid, 0) + 1 for pid in pids if _is_stopped(pid)}
        for pid, looks in self._stopped.items():
            if looks == _WARN_AFTER:
                left_s = (_END_AFTER - _WARN_AFTER) * _EVERY_S
                yield pid, f"is stopped (SIGSTOP), and everyone waits for it: {_remedy(pid)} within {left_s:g} s"
            elif looks >= _END_AFTER:
                self._causes[pid] = f"was stopped (SIGSTOP) for {looks * _EVERY_S:g} s and was ended for that"
                yield pid, ""

    def cause_of(self, pid: int) -> str:
        """What is known of a process that ended: that it was stopped, be it that we ended it for that, be it that
        everyone was ended; to follow the rank's name."""
        was_stopped = self._stopped.get(pid, 0) >= _WARN_AFTER
        return self._causes.pop(pid, "was stopped (SIGSTOP)" if was_stopped else "")


def _remedy(pid: int) -> str:
    return f"let it go on (`kill -CONT {pid}` there), or it is ended"


def _is_stopped(pid: int) -> bool:
    """Stopped by a signal; under a debugger the state is another letter."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False

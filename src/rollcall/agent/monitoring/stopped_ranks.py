"""Notices ranks that were stopped by a signal (SIGSTOP): all others wait for them, and no rank reports an error.

Time is counted in checks, not by the clock: if a scheduler suspends the whole job, this process is stopped, too, and
that time must not count.
"""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_EVERY_S = 0.5
_WARN_AFTER = 6  # checks: who types Ctrl-Z and bg, or attaches a debugger, needs some seconds
_END_AFTER = 24  # checks: a rank that is not continued in 12 s was not stopped in passing


class StoppedRanks:
    """Checks the state of processes twice a second."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._stopped: dict[int, int] = {}  # by pid: in how many checks in a row
        self._causes: dict[int, str] = {}

    def check(self, pids: Iterable[int]) -> Iterator[tuple[int, str]]:
        """Processes that have been stopped for long, each with a warning; an empty one means: end the process."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + _EVERY_S
        self._stopped = {pid: self._stopped.get(pid, 0) + 1 for pid in pids if _is_stopped(pid)}
        for pid, checks in self._stopped.items():
            if checks == _WARN_AFTER:
                left_s = (_END_AFTER - _WARN_AFTER) * _EVERY_S
                yield pid, f"is stopped (SIGSTOP), and all others wait for it: {_remedy(pid)} within {left_s:g} s"
            elif checks >= _END_AFTER:
                self._causes[pid] = f"was stopped (SIGSTOP) for {checks * _EVERY_S:g} s and was ended for that"
                yield pid, ""

    def cause_of(self, pid: int) -> str:
        """That a process which ended was stopped before, if it was; to follow the rank's name."""
        was_stopped = self._stopped.get(pid, 0) >= _WARN_AFTER
        return self._causes.pop(pid, "was stopped (SIGSTOP)" if was_stopped else "")


def _remedy(pid: int) -> str:
    return f"continue it (`kill -CONT {pid}` there), or it is ended"


def _is_stopped(pid: int) -> bool:
    """Stopped by a signal; under a debugger the state is another letter."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False

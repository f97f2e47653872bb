"""Notices ranks in which all threads wait for locks, so that they never run again.

Other ranks may still continue: one that sleeps for a time; one that waits for a connection, a pipe, the keyboard or a
child process; and one that polls, since it runs now and then.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import psutil

from rollcall.agent.monitoring.thread_states import read, switches
from rollcall.record import ring_format

_LOCKS = ("futex", "flock", "locks_", "fcntl_setlk", "posix_lock")  # how functions of the kernel that wait begin
# Threads of torch and gloo wait for other ranks and for the main thread; the recorder's thread releases no lock.
_NOT_OF_PROGRAM = ("pt_", "gloo_", ring_format.SAMPLER_THREAD)


@dataclass
class SleepingRanks:
    """How long each rank has not run, look by look."""

    _switches: dict[int, int] = field(default_factory=dict)  # by pid
    _since_s: dict[int, float] = field(default_factory=dict)  # by pid: since when it has not run
    _is_asked: bool = False
    _was_asked: bool = False  # at the last look, or since

    @contextlib.contextmanager
    def are_asked(self) -> Iterator[None]:
        """Ranks may be asked for their stacks by a signal, which wakes them: that does not count."""
        self._is_asked = self._was_asked = True
        try:
            yield
        finally:
            self._is_asked = False

    def slept_s(self, pids: Iterable[int]) -> float:
        """For how long none of these processes has run; 0 if one of them may continue by itself, or there is none."""
        now = time.monotonic()
        counts = {pid: switches(pid, pid) for pid in pids}
        is_asked, self._was_asked = self._was_asked, self._is_asked
        for pid, count in counts.items():
            is_same = count == self._switches.get(pid) or (is_asked and pid in self._switches)
            if not is_same or not _is_locked(pid):
                self._since_s[pid] = now
        self._switches = counts
        return min((now - self._since_s[pid] for pid in counts), default=0.0)


def _is_locked(pid: int) -> bool:
    """Whether all threads of the program wait for locks, and it has no process of its own that could release one."""
    if not _waits_for_lock(pid, pid):  # asked first: a rank that works has many threads, and is looked at every second
        return False
    try:
        threads = [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]
        return all(_waits_for_lock(pid, each) for each in threads) and not psutil.Process(pid).children()
    except (OSError, psutil.Error):  # it has just ended
        return False


def _waits_for_lock(pid: int, thread: int) -> bool:
    """By the function of the kernel in which it waits. There is none if it runs, or if the kernel does not tell."""
    if read(pid, thread, "wchan").startswith(_LOCKS):
        return True
    return thread != pid and read(pid, thread, "comm").startswith(_NOT_OF_PROGRAM)

"""Ends rehearsed ranks that wait for something that does not happen in a rehearsal.

A rank that computes without an end notices that itself (rank/steps.py).
"""

import os
import signal
import time
from collections.abc import Iterable

import psutil

GIVE_UP = signal.SIGXCPU  # the rank then says on which line it waits
LOOK_S = 5.0
_IDLE_PERCENT = 1.0  # of a core: a rank that uses less waits, perhaps with some polling
_GRACE_S = 10.0  # for a rank to end


class IdleRanks:
    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.look_s = min(LOOK_S, limit_s / 4)
        self._processes: dict[int, psutil.Process] = {}
        self._since_s: dict[int, float] = {}  # by process: when it was last seen at work
        self._told_s: dict[int, float] = {}
        self._looked_s = 0.0

    def look(self, pids: Iterable[int]) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < self.look_s:
            return
        self._looked_s = now_s
        for pid in pids:
            if self._is_idle(pid) and now_s - self._since_s.setdefault(pid, now_s) >= self._limit_s:
                self._end(pid, now_s)

    def was_ended(self, pid: int) -> bool:
        """Whether it had to be killed, and could not say where it waited."""
        for known in (self._processes, self._since_s):
            known.pop(pid, None)
        told_s = self._told_s.pop(pid, None)
        return told_s is not None and time.monotonic() - told_s >= _GRACE_S

    def _is_idle(self, pid: int) -> bool:
        try:
            # The first call only begins to count, and returns 0.
            percent = self._processes.setdefault(pid, psutil.Process(pid)).cpu_percent()
        except psutil.Error:
            return False
        if percent < _IDLE_PERCENT:
            return True
        self._since_s[pid] = self._looked_s
        return False

    def _end(self, pid: int, now_s: float) -> None:
        told_s = self._told_s.setdefault(pid, now_s)
        os.kill(pid, GIVE_UP if told_s == now_s else signal.SIGKILL if now_s - told_s >= _GRACE_S else 0)

"""Who dies with whom.

The launcher and the agent are both *subreapers*: whatever loses its parent below them becomes their
child, even after a double fork and setsid. So each of the two can end everything below it (family.py)
when the other one is killed, and the kernel ends fork server and ranks together with their parents.
"""

import ctypes
import functools
import os
import signal
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FOR_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_before: dict[signal.Signals, Any] = {}


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Adopt every orphan among our descendants."""
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def leave_ending_to_the_launcher() -> None:
    """Pass over signals that a scheduler or a terminal sends to all: ranks hear them, too, and may have things to save.

    By a handler that does nothing, and not by ignoring them: that would be inherited by what we start.
    """
    for number in _FOR_ALL:
        _before[number] = signal.signal(number, lambda *_: None)


def hear_signals_again() -> None:
    """As they were when we started, under nohup for example: what a rank sees."""
    for number, handler in _before.items():
        signal.signal(number, handler)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however it ends."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(128 + signal.SIGKILL)

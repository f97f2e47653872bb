"""Ties the lifetime of ranks to their agent (PR_SET_PDEATHSIG, subreaper), and keeps the agent alive until they end.

The launcher and the agent are both *subreapers*: a descendant that loses its parent becomes their child, even
after a double fork and setsid. So when one of the two is killed, the other can end everything below it
(process_tree.py). The kernel ends fork server and ranks together with their parents.
"""

import ctypes
import functools
import os
import signal
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_before: dict[signal.Signals, Any] = {}


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Adopt every orphan among our descendants."""
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def ignore_stop_signals() -> None:
    """Ignore signals that a scheduler or a terminal sends to all processes: the launcher decides when ranks end.

    A handler that does nothing is used, since child processes would inherit SIG_IGN.
    """
    for number in _STOP_SIGNALS:
        _before[number] = signal.signal(number, lambda *_: None)


def restore_stop_signals() -> None:
    """Give a rank the handlers that this process was started with, for example under nohup."""
    for number, handler in _before.items():
        signal.signal(number, handler)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however it ends."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(128 + signal.SIGKILL)

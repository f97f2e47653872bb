"""Who dies with whom.

The launcher and the agent are both *subreapers*: whatever loses its parent below them becomes their
child, even after a double fork and setsid. So each of the two can end everything below it (family.py)
when the other one is killed, and the kernel ends fork server and ranks together with their parents.
"""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Adopt every orphan among our descendants."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(128 + signal.SIGKILL)

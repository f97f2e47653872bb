"""Nothing is left running: who dies with whom, and ending a whole tree of processes.

The launcher and the agent are both *subreapers*: whatever loses its parent below them becomes their
child, even after a double fork and setsid. So each of the two can end everything below it when the
other one is killed, and the kernel ends fork server and ranks together with their parents.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection

import psutil

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


def descendants(spared: Collection[int] = ()) -> list[psutil.Process]:
    """All processes below this one, but for those spared (whose own children are listed)."""
    return [p for p in psutil.Process().children(recursive=True) if p.pid not in spared]


def wait_for_descendants(timeout_s: float, spared: Collection[int] = ()) -> None:
    """Let those end by themselves that are about to: multiprocessing's helpers outlive their user by a moment."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and any(map(_is_alive, descendants(spared))):
        time.sleep(0.01)


def end_descendants(grace_s: float, spared: Collection[int] = ()) -> list[str]:
    """End everything below this process: SIGTERM, then SIGKILL after the grace. Says what it ended."""
    ended: dict[int, str] = {}
    give_up = time.monotonic() + grace_s + 5
    kill_after = time.monotonic() + grace_s
    while time.monotonic() < give_up:
        alive = [p for p in descendants(spared) if _is_alive(p)]
        if not alive:
            break
        hard = time.monotonic() >= kill_after
        for process in alive:
            if hard or process.pid not in ended:
                ended.setdefault(process.pid, _describe(process))
                _send(process, signal.SIGKILL if hard else signal.SIGTERM)
        time.sleep(0.01)
    _reap()
    return list(ended.values())


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{' '.join(process.cmdline()) or process.name()} (pid {process.pid})"
    return f"pid {process.pid}"


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
        if number == signal.SIGTERM:  # a stopped process would never see it
            process.send_signal(signal.SIGCONT)


def _reap() -> None:
    """Collect the exit status of adopted orphans, so that they do not stay as zombies."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)

"""What the threads of a process do, as the kernel tells it."""

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

_PAUSE_S = 0.02  # between two looks; longer than the 5 ms after which Python passes its lock on
_ASLEEP = ("S", "D")  # states in /proc/PID/stat


def read(pid: int, thread: int, file: str) -> str:
    """The text of a file about a thread; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/task/{thread}/{file}").read_text()
    return ""


def switches(pid: int, thread: int, sorts: tuple[str, ...] = ("voluntary_", "nonvoluntary_")) -> int:
    """How often the thread has begun to wait, and how often another one has taken its processor."""
    counts = [line.split()[1] for line in read(pid, thread, "status").splitlines() if line.startswith(sorts)]
    return sum(map(int, counts)) if counts else -1


def asleep(pids: Collection[int]) -> set[int]:
    """The processes whose main threads did not run during a short time."""
    before = {pid: _sleep(pid) for pid in pids}
    time.sleep(_PAUSE_S if pids else 0)
    return {pid for pid in pids if before[pid] is not None and before[pid] == _sleep(pid)}


def _sleep(pid: int) -> int | None:
    """Tells one sleep of the main thread from another; None if it does not sleep."""
    state = read(pid, pid, "stat").rpartition(")")[2].split()
    return switches(pid, pid) if state and state[0] in _ASLEEP else None


def waits_of(pid: int, name: str) -> int:
    """How often the threads of this name have begun to wait."""
    with contextlib.suppress(OSError):
        threads = [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]
        named = [thread for thread in threads if read(pid, thread, "comm").strip() == name]
        return sum(switches(pid, thread, ("voluntary_",)) for thread in named)
    return 0

"""Tells ranks that only wait (for a lock, in a sleep, for a file) from ranks that compute or read."""

import contextlib
import time
from collections.abc import Mapping

import psutil

_DURING_S = 0.3  # thirty ticks of the clock by which the kernel counts processor time
# Threads of rollcall and gloo in a rank take below one per cent. A rank that computes takes a core, or its share of one
# where ranks are many.
_BUSY_SHARE = 0.05
_BUSY_BYTES = 64 << 10  # the store's keep-alive and a line of log are less, a file that is read is more


def find(pids: Mapping[int, int], during_s: float = _DURING_S) -> dict[str, bool]:
    """By rank: whether it used no processor, and read and wrote next to nothing. What its own processes do, such as the
    workers of a DataLoader, it does."""
    before = {rank: _used(pid) for rank, pid in pids.items()}
    time.sleep(during_s if pids else 0)
    found = {}
    for rank, pid in pids.items():
        (cpu_s, moved), (cpu_before_s, moved_before) = _used(pid), before[rank]
        found[str(rank)] = cpu_s - cpu_before_s < _BUSY_SHARE * during_s and moved - moved_before < _BUSY_BYTES
    return found


def _used(pid: int) -> tuple[float, int]:
    """Seconds of processor time, and bytes that were read or written."""
    seconds, moved = 0.0, 0
    with contextlib.suppress(psutil.Error):
        rank = psutil.Process(pid)
        for process in (rank, *rank.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # another user's, or just gone
                times, counters = process.cpu_times(), process.io_counters()
                seconds += times.user + times.system
                moved += counters.read_chars + counters.write_chars
    return seconds, moved

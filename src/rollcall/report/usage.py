"""What a process takes of the machine, from its file in /proc: one short read a look."""

import os
import time
import weakref

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_USER, _SYSTEM, _RESIDENT = 11, 12, 21  # behind the name, which may have spaces in it


class Usage:
    """One process. OSError when it is gone: the file is that of this process, not of a later one with its number."""

    def __init__(self, pid: int) -> None:
        self._fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)
        self._ticks, self._looked_s = 0, 0.0

    def now(self) -> tuple[float | None, int]:
        """Per cent of a core since the last look, None at the first; bytes of memory."""
        fields = os.pread(self._fd, 1024, 0).rpartition(b")")[2].split()
        ticks, looked_s = int(fields[_USER]) + int(fields[_SYSTEM]), time.monotonic()
        passed_s = looked_s - self._looked_s
        percent = 100 * (ticks - self._ticks) / _TICKS_PER_S / passed_s if self._looked_s and passed_s else None
        self._ticks, self._looked_s = ticks, looked_s
        return percent, int(fields[_RESIDENT]) * _PAGE_BYTES

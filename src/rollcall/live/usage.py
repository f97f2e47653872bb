"""What a process takes of the machine, from its file in /proc: one short read a look."""

import os
import time

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_USER, _SYSTEM, _BEGUN, _RESIDENT = 11, 12, 19, 21  # behind the name, which may have spaces in it


class Usage:
    """One process. OSError when it is gone, be it that another has its number by now."""

    def __init__(self, pid: int) -> None:
        self._path = f"/proc/{pid}/stat"
        self._begun = self._read()[_BEGUN]
        self._ticks, self._looked_s = 0, 0.0

    def now(self) -> tuple[float | None, int]:
        """Per cent of a core since the last look, None at the first; bytes of memory."""
        fields = self._read()
        if fields[_BEGUN] != self._begun:
            raise ProcessLookupError(self._path)
        ticks, looked_s = int(fields[_USER]) + int(fields[_SYSTEM]), time.monotonic()
        passed_s = looked_s - self._looked_s
        percent = 100 * (ticks - self._ticks) / _TICKS_PER_S / passed_s if self._looked_s and passed_s else None
        self._ticks, self._looked_s = ticks, looked_s
        return percent, int(fields[_RESIDENT]) * _PAGE_BYTES

    def _read(self) -> list[bytes]:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 1024).rpartition(b")")[2].split()
        finally:
            os.close(fd)

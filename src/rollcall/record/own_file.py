"""A file that the recorder keeps open in the program's process. The program may close all files, as a daemon does, and
one of its own may then get the number of ours: nothing is written to a number before it is checked."""

import errno
import fcntl
import os
import resource
from pathlib import Path

_HIGH = 1000  # the kernel's table of files has 8 KB then


class OwnFile:
    def __init__(self, path: Path, flags: int) -> None:
        self.path, self._flags = os.path.abspath(path), flags | os.O_CLOEXEC  # the program may change its folder
        self._fd = _move_up(os.open(self.path, self._flags, 0o644))
        self._identity = _identity(self._fd)

    @property
    def fd(self) -> int:
        """Opens the file again where the program has closed it."""
        if _identity(self._fd) != self._identity:
            self._fd = _move_up(os.open(self.path, self._flags & ~(os.O_CREAT | os.O_EXCL)))
            if _identity(self._fd) != self._identity:
                raise OSError(errno.ESTALE, "another file has taken its place", self.path)
        return self._fd

    def close(self) -> None:
        os.close(self._fd)


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _move_up(fd: int) -> int:
    """Moves the file to a number that no file of the program gets soon: a new file gets the lowest one that is free."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH if limit < 0 else min(_HIGH, limit // 2))
    except OSError:  # none is free there
        return fd
    os.close(fd)
    return moved

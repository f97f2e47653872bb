"""Add to a file: all of it, or nothing."""

import errno
import os
from pathlib import Path


def append(path: Path, data: bytes) -> None:
    """Where the disk is full in the middle, what was written is taken back: nothing may be added to a half."""
    with open(path, "ab", buffering=0) as file:
        before = file.tell()
        if file.write(data) < len(data):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

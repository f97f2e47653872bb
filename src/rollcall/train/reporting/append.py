"""Appends to a file completely or not at all."""

import errno
import os
from pathlib import Path


def append(path: Path, data: bytes) -> None:
    """If the disk is full after a part of the data, remove that part: a later line must not follow half a line."""
    with open(path, "ab", buffering=0) as file:
        before = file.tell()
        if file.write(data) < len(data):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

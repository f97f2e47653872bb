"""Keeps the files of the program beside its rings, as they are while it runs: explain reads their lines later, when
they may have changed, or on another machine."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from rollcall.record.sites import Site, is_users_file
from rollcall.runs import stored_source_name

_MOST_BYTES = 1 << 20  # what is larger was not written by hand


class SourceCopies:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: set[str] = set()

    def keep(self, frames: Iterable[Site]) -> None:
        """Copy the file of each frame once. The first rank of a host does it for all."""
        for file in {file for file, _, _ in frames} - self._known:
            self._known.add(file)
            name = stored_source_name(file)
            if name and is_users_file(file):
                with contextlib.suppress(OSError, ValueError):  # no file, or no room: the run continues without
                    self._copy(file, self._folder / name)

    def _copy(self, file: str, target: Path) -> None:
        if target.exists() or os.stat(file).st_size > _MOST_BYTES:
            return
        self._folder.mkdir(exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(Path(file).read_bytes())
        fresh.replace(target)  # replaced as a whole: other processes may read it

"""The lines of the program as they were when it ran: rings come with copies of the files. Whoever asks linecache for a
line gets it from there."""

import contextlib
import linecache
from pathlib import Path

from rollcall.runs import stored_source_file

_stored: set[str] = set()  # files whose lines linecache has from a run


def use(folder: Path) -> None:
    """From now on, the lines are those of this run. A file that is not stored is read from where it is."""
    for file in _stored:
        linecache.cache.pop(file, None)
    _stored.clear()
    for path in folder.glob("*.py"):
        with contextlib.suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace")
            file = stored_source_file(path.name)
            # Without a modification time, linecache does not look at the file again.
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
            _stored.add(file)

"""Whether a fresh interpreter would load the same modules as this process: by their files and folders."""

import os
import sys
from collections.abc import Iterator

Stamp = tuple[object, ...]  # of a file, when it changed and which it is; of a folder, which entries it has


def stamps() -> dict[str, Stamp]:
    """Stamps every module and library of this process, the folders where modules are looked for, and Python itself."""
    return {path: _stamp(path) for path in {*_modules(), *_libraries(), *_search_path(), *_python()}}


def changed(before: dict[str, Stamp]) -> str:
    """A file or folder that has changed; empty if none has."""
    return next((path for path, stamp in before.items() if _stamp(path) != stamp), "")


def _stamp(path: str) -> Stamp:
    """Has the time of the metadata, too: a file that replaces another may have been given the time of the old one."""
    try:
        if os.path.isdir(path):
            return _entries(path)
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def _entries(folder: str) -> Stamp:
    """The entries, not the folder's own time: the first __pycache__ changes the time, and changes no module."""
    with os.scandir(folder) as entries:
        return tuple(sorted((entry.name, entry.inode()) for entry in entries if entry.name != "__pycache__"))


def _modules() -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.startswith("/"):
            yield file


def _libraries() -> Iterator[str]:
    with open("/proc/self/maps") as file:
        for line in file:
            path = line.split(maxsplit=5)[5:]
            if path and path[0].startswith("/") and not path[0].startswith(("/dev/", "/memfd:", "/SYSV")):
                yield path[0].rstrip("\n")


def _search_path() -> Iterator[str]:
    """Folders: a package that is installed, upgraded or removed changes its folder's entries. And the .pth files."""
    for folder in sys.path:
        yield folder
        if os.path.isdir(folder):
            yield from (os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".pth"))


def _python() -> Iterator[str]:
    yield sys.executable
    yield os.path.realpath(sys.executable)
    yield os.path.join(sys.prefix, "pyvenv.cfg")
    # What the C library reads when a process starts.
    yield from ("/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/localtime", "/etc/timezone")

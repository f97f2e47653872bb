"""Keeps a rehearsed rank from touching anything: what it writes goes to the folder of the run, and no connection is
opened. The rank finds a file that it has written under the path to which it wrote it.

This holds for what Python does. Code in C that opens files by itself, and programs that the rank starts, are refused to
write anywhere else by the kernel, if it can do that.
"""

import atexit
import builtins
import contextlib
import errno
import functools
import importlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rollcall.linux import landlock

_WRITES = ("w", "a", "x", "+")
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_REMOVED = "-removed"
_FREE = ("/dev/", "/proc/", "/sys/")
_WRITABLE = ("/dev", "/proc")


class Journal:
    """When a rank wrote its files, and removed them: counted in ops between ranks, the only time that ranks share."""

    def __init__(self, count_ops: Callable[[], int] = lambda: 0) -> None:
        self.count_ops = count_ops
        self.written: dict[str, int] = {}
        self.removed: dict[str, int] = {}

    def note_written(self, path: str) -> None:
        self.written.setdefault(path, self.count_ops())
        self.removed.pop(path, None)

    def note_removed(self, path: str) -> None:
        self.removed[path] = self.count_ops()

    def is_there(self, path: str, ops: int) -> bool:
        """Whether the file exists for another rank that has made this number of ops."""
        return path in self.written and self.written[path] < ops <= self.removed.get(path, ops)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps([self.written, self.removed]))

    @classmethod
    def load(cls, path: Path) -> "Journal":
        found = cls()
        if path.exists():
            found.written, found.removed = json.loads(path.read_text())
        return found


class Overlay:
    """A folder in which the files of a rank lie under their whole paths.

    The rank also sees the files that the rank that ran first, mostly rank 0, had written before the same op: files that
    it prepares for all. Files of other ranks are not seen: which of them exist would depend on the order in which ranks
    run. Real ranks, which run at the same time, have one folder for all."""

    def __init__(self, root: Path, first: Path, temporary: str, count_ops: Callable[[], int] = lambda: 0) -> None:
        self._root, self._first = str(root), str(first)
        self.journal = Journal(count_ops)
        self._its = Journal() if root == first else Journal.load(_journal(first))
        # Ring, results, and temporary files: sockets are made among these, which have to be where they are.
        self.own = (str(root.parents[1]), temporary)
        self._free = (*_FREE, *(f"{folder}/" for folder in self.own))
        self._gone: set[str] = set()  # removed by the rank, and still there in reality

    def is_free(self, path: Any) -> bool:
        """Whether a path is left as it is: a descriptor, a device, the folder of the run."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return True
        full = os.path.abspath(os.fsdecode(path))
        return full.startswith(self._free) or full in (self._root, *self.own)

    def owns(self, descriptor: int) -> bool:
        """Whether an open file is one that the rank may change."""
        return self.is_free(os.readlink(f"/proc/self/fd/{descriptor}"))

    def inside(self, path: Any) -> str:
        return self._root + os.path.abspath(os.fsdecode(path))

    def read(self, path: Any) -> Any:
        """The path to read a file from: the rank's own copy, if it has written the file."""
        return self.places(path)[0]

    def places(self, path: Any) -> list[Any]:
        """The places where a file of this path exists: first that of the rank's own files, last the path itself."""
        if self.is_free(path):
            return [path]
        full = os.path.abspath(os.fsdecode(path))
        roots = [self._root]
        if self._its.is_there(full, self.journal.count_ops()):
            roots += [self._first, self._first + _REMOVED]
        written = [root + full for root in roots if _lexists(root + full)]
        if self._is_gone(full):
            return written or [self._root + full]
        return [*written, path] if _lexists(path) or not written else written

    def _is_gone(self, full: str) -> bool:
        return bool(self._gone) and any(full == each or full.startswith(f"{each}/") for each in self._gone)

    def is_there(self, path: Any) -> bool:
        return _lexists(self.read(path))

    def names(self, path: Any, listed: Callable[[Any], Iterable[Any]], name_of: Callable[[Any], Any]) -> list[Any]:
        """The names in a folder, in all of its places; of the first rank, only files that exist at this op."""
        if self.is_free(path):
            return list(listed(path))
        full, now = os.path.abspath(os.fsdecode(path)), self.journal.count_ops()
        its = [root + full for root in (self._first, self._first + _REMOVED) if self._root != self._first]
        found: dict[Any, Any] = {}
        for place in dict.fromkeys([*self.places(path), *filter(_isdir, its)]):
            for each in listed(place):
                name = name_of(each)
                if place == path and self._is_gone(os.path.join(full, os.fsdecode(name))):
                    continue
                if place not in its or self._its.is_there(os.path.join(full, name), now):
                    found.setdefault(name, each)
        return list(found.values())

    def remove(self, path: Any) -> None:
        """Other ranks may run after the first one has removed a file, and still see it."""
        self.note_removed(path)
        full = os.path.abspath(os.fsdecode(path))
        if _lexists(self._root + full):
            _makedirs(os.path.dirname(self._root + _REMOVED + full))
            _replace(self._root + full, self._root + _REMOVED + full)

    def note_removed(self, path: Any) -> None:
        """The file is gone for this rank only: the real one stays."""
        full = os.path.abspath(os.fsdecode(path))
        self.journal.note_removed(full)
        self._gone.add(full)

    def write(self, path: Any, keeps: bool = False) -> Any:
        """The path to write a file to; with a copy of its content, if that matters. Its folder must exist."""
        if self.is_free(path):
            return path
        target = self.inside(path)
        self.journal.note_written(os.path.abspath(os.fsdecode(path)))
        folder = os.path.dirname(target)
        if not _isdir(folder) and _isdir(self.read(os.path.dirname(os.path.abspath(os.fsdecode(path))))):
            _makedirs(folder)
        source = self.read(path)
        if keeps and not _lexists(target) and _lexists(source):
            with contextlib.suppress(OSError):
                _copyfile(os.fsdecode(source), target)
        return target


# The real functions, before they are replaced.
_stat, _lstat, _real_open, _real_mkdir, _replace = os.stat, os.lstat, builtins.open, os.mkdir, os.replace


def _lexists(path: Any) -> bool:
    try:
        _lstat(path)
    except OSError:
        return False
    return True


def _isdir(path: str) -> bool:
    try:
        return bool(_stat(path).st_mode & 0o040000)
    except OSError:
        return False


def _makedirs(path: str) -> None:
    if not _isdir(path):
        _makedirs(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            _real_mkdir(path)


def _copyfile(source: str, target: str) -> None:
    with _real_open(source, "rb") as file, _real_open(target, "wb") as copy:
        copy.write(file.read())


def _journal(root: Path) -> Path:
    return root.with_name(f"{root.name}.json")


def install(root: Path, first: Path, temporary: str, count_ops: Callable[[], int] = lambda: 0) -> None:
    """Removes what the rank wrote in an earlier pass, so that it starts as it did then."""
    for old in (root, Path(str(root) + _REMOVED)):
        shutil.rmtree(old, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    overlay = Overlay(root, first, temporary, count_ops)
    redirect(overlay)
    sys.addaudithook(functools.partial(_refuse_connections, overlay))
    landlock.write_only_in((*_WRITABLE, *overlay.own), may_connect=False)
    if root == first:
        atexit.register(overlay.journal.save, _journal(root))


def install_shared(root: Path, temporary: str) -> None:
    """For real ranks, which see each other's files, and may open connections."""
    root.mkdir(parents=True, exist_ok=True)
    overlay = Overlay(root, root, temporary)
    redirect(overlay)
    landlock.write_only_in((*_WRITABLE, *overlay.own), may_connect=True)


def redirect(overlay: Overlay) -> None:
    """Replaces the functions of Python that change files, and those that look at them."""
    sys.dont_write_bytecode = True  # Python's import writes beside each module, by functions of its own
    _replace_open(overlay)
    for name in ("stat", "lstat", "access", "listxattr", "getxattr"):
        setattr(os, name, _reading(getattr(os, name), overlay))
    os.listdir = _listing(os.listdir, overlay)
    setattr(os, "scandir", functools.partial(_Entries, os.scandir, overlay))  # noqa: B010  (typing knows it as a class)
    for name in ("mkdir", "chmod", "chown", "lchown", "utime", "truncate", "setxattr", "removexattr"):
        setattr(os, name, _writing(getattr(os, name), overlay))
    for name in ("fchmod", "fchown"):
        setattr(os, name, _changing(getattr(os, name), overlay))
    for name in ("remove", "unlink", "rmdir"):
        setattr(os, name, _removing(getattr(os, name), overlay))
    for name in ("rename", "replace"):
        setattr(os, name, _moving(getattr(os, name), overlay))
    setattr(shutil, "rmtree", _removing(shutil.rmtree, overlay))  # noqa: B010  (typing knows it as an object)
    os.readlink = _reading_link(os.readlink, overlay)
    os.symlink, os.link = _linking(os.symlink, overlay), _copying(overlay)
    setattr(os, "chdir", _entering(os.chdir, overlay))  # noqa: B010  (typing knows the name of its argument)
    _replace_openers(overlay)


def _replace_open(overlay: Overlay) -> None:
    plain, descriptor = io.open, os.open

    @functools.wraps(plain)
    def redirected(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if any(each in mode for each in _WRITES):
            return plain(overlay.write(file, keeps="w" not in mode), mode, *args, **kwargs)
        return plain(overlay.read(file), mode, *args, **kwargs)

    @functools.wraps(descriptor)
    def redirected_descriptor(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if kwargs.get("dir_fd") is not None:
            return descriptor(path, flags, *args, **kwargs)
        place = overlay.write(path, keeps=True) if flags & _WRITE_FLAGS else overlay.read(path)
        return descriptor(place, flags, *args, **kwargs)

    builtins.open = io.open = redirected
    os.open = redirected_descriptor


def _reading(function: Callable[..., Any], overlay: Overlay) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        return function(overlay.read(path) if kwargs.get("dir_fd") is None else path, *args, **kwargs)

    return call


def _listing(function: Callable[..., list[Any]], overlay: Overlay) -> Callable[..., list[Any]]:
    @functools.wraps(function)
    def call(path: Any = ".") -> list[Any]:
        return overlay.names(path, function, lambda name: name)

    return call


class _Entries:
    """os.scandir of all places of a folder."""

    def __init__(self, scandir: Callable[[Any], Any], overlay: Overlay, path: Any = ".") -> None:
        def listed(place: Any) -> list[Any]:
            with scandir(place) as entries:
                return list(entries)

        self._entries = iter(overlay.names(path, listed, lambda entry: entry.name))

    def __iter__(self) -> "_Entries":
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: Any) -> None: ...

    def close(self) -> None: ...


def _changing(function: Callable[..., Any], overlay: Overlay) -> Callable[..., Any]:
    """For a function that takes an open file: a file that was opened for reading may not be the rank's own, and stays
    unchanged."""

    @functools.wraps(function)
    def call(descriptor: Any, *args: Any, **kwargs: Any) -> Any:
        is_others = isinstance(descriptor, int) and not overlay.owns(descriptor)
        return None if is_others else function(descriptor, *args, **kwargs)

    return call


def _writing(function: Callable[..., Any], overlay: Overlay) -> Callable[..., Any]:
    changing = _changing(function, overlay)

    @functools.wraps(function)
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(path, int) or kwargs.get("dir_fd") is not None:
            return changing(path, *args, **kwargs)
        is_new = function.__name__ == "mkdir"
        if is_new and not overlay.is_free(path) and _lexists(overlay.read(path)):
            raise FileExistsError(errno.EEXIST, "File exists", os.fsdecode(path))
        return function(overlay.write(path, keeps=not is_new), *args, **kwargs)

    return call


def _removing(function: Callable[..., Any], overlay: Overlay) -> Callable[..., Any]:
    """What was there before the rehearsal stays there."""

    @functools.wraps(function)
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dir_fd") is not None or overlay.is_free(path):
            return function(path, *args, **kwargs)
        if not overlay.is_there(path):
            if kwargs.get("ignore_errors") or args[:1] == (True,):
                return None
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", os.fsdecode(path))
        if function.__name__ in ("remove", "unlink"):
            return overlay.remove(path)
        if function.__name__ == "rmdir" and os.listdir(path):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", os.fsdecode(path))
        if _lexists(overlay.inside(path)):
            function(overlay.inside(path), *args, **kwargs)
        return overlay.note_removed(path)

    return call


def _moving(function: Callable[..., Any], overlay: Overlay) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(source: Any, target: Any, **kwargs: Any) -> Any:
        if any(each is not None for each in kwargs.values()):
            return function(source, target, **kwargs)
        moved = function(overlay.write(source, keeps=True), overlay.write(target))
        if not overlay.is_free(source):
            overlay.note_removed(source)
        return moved

    return call


def _linking(function: Callable[..., None], overlay: Overlay) -> Callable[..., None]:
    """A link leads to a file of the rank, or to a copy: a write through the link must not change a real file."""

    @functools.wraps(function)
    def call(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        if overlay.is_free(target):
            function(source, target, *args, **kwargs)
            return
        full = os.path.join(os.path.dirname(os.path.abspath(os.fsdecode(target))), os.fsdecode(source))
        if _isdir(os.fsdecode(overlay.read(full))):
            _makedirs(overlay.inside(full))
        function(overlay.write(full, keeps=True), overlay.write(target), *args, **kwargs)

    return call


def _reading_link(function: Callable[..., Any], overlay: Overlay) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(path: Any, **kwargs: Any) -> Any:
        target = function(overlay.read(path) if kwargs.get("dir_fd") is None else path, **kwargs)
        return target.removeprefix(overlay.inside("/")[:-1]) if isinstance(target, str) else target

    return call


def _copying(overlay: Overlay) -> Callable[..., None]:
    """os.link; a second name for a file that was there would let the rank write to it."""

    def call(source: Any, target: Any, **_: Any) -> None:
        _copyfile(os.fsdecode(overlay.read(source)), os.fsdecode(overlay.write(target)))

    return call


def _entering(function: Callable[[Any], None], overlay: Overlay) -> Callable[[Any], None]:
    """A folder that only the rank has made is entered where it lies, in the folder of the run."""

    @functools.wraps(function)
    def call(path: Any) -> None:
        is_made = not overlay.is_free(path) and not _isdir(os.fsdecode(path))
        function(overlay.read(path) if is_made else path)

    return call


def _replace_openers(overlay: Overlay) -> None:
    """sqlite opens its files in C; numpy, for its text files, and tarfile have kept Python's own `open` since they were
    imported."""
    with contextlib.suppress(ImportError):  # a Python that is built without it
        sqlite: Any = importlib.import_module("sqlite3")
        plain = sqlite.connect

        @functools.wraps(plain)
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            return plain(_database(database, bool(kwargs.get("uri")), overlay), *args, **kwargs)

        sqlite.connect = sqlite.dbapi2.connect = connect
    if source := sys.modules.get("numpy.lib._datasource"):
        source._file_openers._file_openers[None] = io.open
    if archives := sys.modules.get("tarfile"):
        setattr(archives, "bltn_open", io.open)  # noqa: B010  (typing: a replaced function)


def _database(name: Any, is_uri: bool, overlay: Overlay) -> Any:
    path, asks, query = os.fsdecode(name).partition("?") if is_uri else (os.fsdecode(name), "", "")
    scheme = "file:" * (is_uri and path.startswith("file:"))
    path = path.removeprefix(scheme)
    if path in ("", ":memory:") or "mode=memory" in query:
        return name
    return f"{scheme}{overlay.write(path, keeps=True)}{asks}{query}"


_SENDS = ("socket.connect", "socket.sendto", "socket.sendmsg")  # events of Python; their second word is the address


def _refuse_connections(overlay: Overlay, event: str, args: tuple[Any, ...]) -> None:
    """Refuses with an error of the network: libraries that can do without it continue. A rank may talk to processes of
    its own, by sockets among its temporary files or without a file."""
    if event not in _SENDS or not args[1]:
        return
    address = args[1][0] if isinstance(args[1], tuple) else os.fsdecode(args[1])
    if isinstance(args[1], tuple) or not (address.startswith("\0") or overlay.is_free(address)):
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"rollcall rehearse opens no connection, here to {address}")

"""Reads the code of modules from the disk before they are imported: torch has 700 modules, which take 0.1 s."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import SourceFileLoader
from types import CodeType

_codes: dict[str, CodeType | None] = {}  # by their files
_get_code = SourceFileLoader.get_code


def read(root: str, folders: Iterable[str], has_time: Callable[[], bool]) -> None:
    """The code of the modules in these folders, as their import would read it, for as long as `has_time` says."""
    for folder in folders:
        with contextlib.suppress(OSError):  # another torch has no such folder
            for file in os.listdir(os.path.join(root, folder)):
                if not has_time():
                    return
                if file.endswith(".py"):
                    name = f"{folder}/{file}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                    _read(name, os.path.join(root, folder, file))


def _read(name: str, path: str) -> None:
    with contextlib.suppress(SyntaxError, ImportError, OSError):  # importing it will say so
        _codes[path] = SourceFileLoader(name, path).get_code(name)


@contextlib.contextmanager
def used() -> Iterator[None]:
    """Inside, an import of one of these modules does not read its file again."""

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        return _codes.pop(str(loader.path), None) or _get_code(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del SourceFileLoader.get_code
        _codes.clear()

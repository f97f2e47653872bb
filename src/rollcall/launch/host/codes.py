"""Modules' code, read from the disk before they are imported: there are 700 of torch, and a tenth of a second."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

_codes: dict[str, CodeType | None] = {}  # by their files
_get_code = SourceFileLoader.get_code


def read(package: Path, folders: Iterable[str], has_time: Callable[[], bool]) -> None:
    """The code of a package's modules in these of its folders, as their import would read it, while there is time."""
    for folder in folders:
        for path in sorted((package / folder).glob("*.py")):
            if not has_time():
                return
            name = ".".join((package.name, *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
            with contextlib.suppress(SyntaxError, ImportError, OSError):  # whoever imports it will say so
                _codes[str(path)] = SourceFileLoader(name, str(path)).get_code(name)


@contextlib.contextmanager
def used() -> Iterator[None]:
    """Whoever imports one of them now, need not read it again."""

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        return _codes.pop(str(loader.path), None) or _get_code(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        del SourceFileLoader.get_code
        _codes.clear()

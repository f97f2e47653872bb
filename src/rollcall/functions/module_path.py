"""Whether Python finds the same modules on another `sys.path`, without importing them again."""

import importlib.machinery
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_SUFFIXES = tuple(importlib.machinery.all_suffixes())
_METADATA = (".dist-info", ".egg-info")
_PLUGINS = "[torch."  # groups of entry points that `import torch` loads
_AT_START = {"sitecustomize", "usercustomize"}  # Python looks for them before anything else


class LookedUp:
    """First in `sys.meta_path`, it sees each name that is imported, whether the module exists or not."""

    def __init__(self) -> None:
        self.names = {name.partition(".")[0] for name in sys.modules} | _AT_START

    def find_spec(self, name: str, *_: Any) -> None:
        self.names.add(name.partition(".")[0])


@contextmanager
def noting_names() -> Iterator[set[str]]:
    """The names of packages that are loaded already, or looked for in the block."""
    finder: Any = LookedUp()
    sys.meta_path.insert(0, finder)
    try:
        yield finder.names
    finally:
        sys.meta_path.remove(finder)


def difference(names: set[str], ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Why one of the names may be another module on their path than on ours; empty if it cannot."""
    if [folder for folder in theirs if folder in set(ours)] != list(ours):
        return "the order of sys.path"
    others = (folder for folder in theirs if folder not in set(ours))
    return next((found for folder in others if (found := _conflict(names, folder))), "")


def _conflict(names: set[str], folder: str) -> str:
    if not os.path.isdir(folder):
        return folder if os.path.exists(folder) else ""  # a zip file, for example
    for entry in sorted(os.listdir(folder)):
        path = os.path.join(folder, entry)
        if entry.endswith(_METADATA) and _has_plugins(path):
            return path
        if entry.partition(".")[0] in names and _is_module(path, entry):
            return f"{path}, a module of that name"
    return ""


def _is_module(path: str, entry: str) -> bool:
    """A folder without an __init__ is a module only if no other module has its name."""
    if not os.path.isdir(path):
        return entry.endswith(_SUFFIXES)
    return entry not in sys.modules or any(name.startswith("__init__.") for name in os.listdir(path))


def _has_plugins(path: str) -> bool:
    try:
        with open(os.path.join(path, "entry_points.txt"), errors="replace") as file:
            return _PLUGINS in file.read()
    except OSError:
        return False

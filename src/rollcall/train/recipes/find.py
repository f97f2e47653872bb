"""Finds a recipe by its name: `my_module:recipe`, or `folder/file.py:recipe`."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollcall.errors import UsageError

_FORM = "use MODULE:FUNCTION or FILE.py:FUNCTION, such as my_module:recipe"


def check_name(name: str) -> None:
    """Before any rank starts, and without importing the module: it may take long."""
    place, _, function = name.rpartition(":")
    if not place or not function.isidentifier():
        raise UsageError(f"{name} does not name a recipe: {_FORM}")
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise UsageError(f"there is no file {place}: {_FORM}")
    elif not _is_there(place):
        raise UsageError(f"there is no module {place} here or in what is installed: {_FORM}")


def find_function(name: str) -> Callable[..., Any]:
    place, _, function = name.rpartition(":")
    module = _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    found: Callable[..., Any] | None = getattr(module, function, None)
    if not callable(found):
        own = {key: each for key, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__}
        functions = [key for key, each in own.items() if inspect.isfunction(each) and not key.startswith("_")]
        has = f"it has {', '.join(functions)}" if functions else "it has no functions"
        raise UsageError(f"{place} has no function {function}: {has}")
    if not _takes_options(found):
        raise UsageError(f"it does not take the options of the command line: write `def {function}(options):`")
    return found


def _takes_options(function: Callable[..., Any]) -> bool:
    """Whether it can be called with one argument."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # one of C, which does not tell
        return True
    return True


def _is_there(module: str) -> bool:
    if (Path.cwd() / module.replace(".", "/")).with_suffix(".py").exists():
        return True
    try:
        return importlib.util.find_spec(module) is not None or Path(module.replace(".", "/")).is_dir()
    except (ImportError, ValueError):
        return False


def _import_file(path: Path) -> Any:
    """Under its own name, so that workers of a loader can import it too."""
    sys.path.insert(0, str(path.parent.resolve()))
    return importlib.import_module(path.stem)

"""The version of the installed torch, as torch.__version__ has it, without importing torch: that takes a second."""

import contextlib
import importlib.util
import re
from pathlib import Path

from rollcall.errors import UsageError

OLDEST = (2, 9)  # the oldest that `make matrix` tries; docs/compatibility.md lists them


def torch_version() -> str:
    """The version with the part after the plus, as in 2.13.0+cpu, which the metadata of some builds lacks. Empty if
    torch is not installed."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return ""
    with contextlib.suppress(OSError):  # a damaged torch: importing it will show what is wrong
        for line in Path(spec.submodule_search_locations[0], "version.py").read_text().splitlines():
            name, equals, value = line.partition("=")
            if equals and name.partition(":")[0].strip() == "__version__":
                return value.strip().strip("'\"")
    return "unknown"


def is_older(version: str, than: tuple[int, int]) -> bool:
    """False for a version that does not begin with two numbers."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and tuple(map(int, numbers.groups())) < than


def refuse_older(version: str) -> None:
    """Raise where torch is older than what is tested: its private names and its agent differ, and fail later."""
    if is_older(version, OLDEST):
        oldest = ".".join(map(str, OLDEST))
        raise UsageError(
            f"torch is {version}, but rollcall needs {oldest} or newer, the oldest that it is tested with:"
            f" pip install 'torch>={oldest}'"
        )

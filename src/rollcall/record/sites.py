"""Whose line it is: the innermost frame of the user's own code, not torch's, not Python's, not ours."""

import functools
import re
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType

_OURS = str(Path(__file__).parents[1]) + "/"
_LESSONS = (f"{_OURS}demo/", f"{_OURS}lab/")  # programs like a user's, that come with us
_PYTHON = tuple(
    {path.rstrip("/") + "/" for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")) if path}
)
_INSTALLED = ("/site-packages/", "/dist-packages/", "/torchinductor_")  # the last: what the compiler wrote
_MOST_FRAMES = 8
Site = tuple[str, int, str]  # file, line, function


@functools.cache
def is_users(code: CodeType) -> bool:
    return is_users_file(code.co_filename)


def is_users_file(name: str) -> bool:
    if name.startswith("<") and name != "<stdin>" and (name != "<string>" or sys.argv[:1] != ["-c"]):
        return False  # importlib's own, a dataclass's methods
    if name.startswith(_OURS):
        return name.startswith(_LESSONS)
    return not any(part in name for part in _INSTALLED) and not name.startswith(_PYTHON)


def waits_for_data(files: Iterable[str]) -> bool:
    """Whether a stack, by its files from the inside outwards, is one of somebody who fetches data: a loader has called
    the user's code, or the user's code has called a queue."""
    is_inside = True
    for file in files:
        if _LOADER in file or (is_inside and _QUEUES.search(file)):
            return True
        is_inside = is_inside and not is_users_file(file)
    return False


_LOADER = "/torch/utils/data/"
_QUEUES = re.compile(r"/queue\.py$|/multiprocessing/(queues|connection|pool)\.py$")


def chain(frame: FrameType | None) -> tuple[tuple[CodeType, int], ...]:
    """The user's frames from this one outwards, innermost first: how the program came to the op."""
    found: list[tuple[CodeType, int]] = []
    last = frame
    while frame is not None and len(found) < _MOST_FRAMES:
        if is_users(frame.f_code):
            found.append((frame.f_code, frame.f_lineno))
        last, frame = frame, frame.f_back
    if not found and last is not None:
        found.append((last.f_code, last.f_lineno))
    return tuple(found)


def describe(places: tuple[tuple[CodeType, int], ...]) -> list[Site]:
    return [(code.co_filename, line, code.co_name) for code, line in places]

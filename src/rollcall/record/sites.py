"""Whose line it is: the innermost frame of the user's own code, not torch's, not Python's, not ours."""

import re
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType, TracebackType

_OURS = str(Path(__file__).parents[1]) + "/"
_FLOOR = f"{_OURS}worker/main.py"  # runs the user's program: what lies under it is not theirs
_PROGRAMS = (f"{_OURS}demo/", f"{_OURS}lab/experiments/")  # programs like a user's, shipped with rollcall
_PYTHON = tuple(
    {path.rstrip("/") + "/" for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")) if path}
)
_INSTALLED = ("/site-packages/", "/dist-packages/", "/torchinductor_")  # the last: what the compiler wrote
_MOST_NUMBERS = 16  # of eight frames
Site = tuple[str, int, str]  # file, line, function


# By id: code objects that were seen, and whether they are the user's. Python hashes a code object by all that is in it,
# every time; an id costs nothing, and is its own as long as the object is kept here.
_seen: dict[int, tuple[CodeType, bool]] = {}
# id of a code object, and which of its instructions; and so on, outwards. Which line that is takes Python long to say.
Places = tuple[int, ...]


def look_at(code: CodeType) -> tuple[CodeType, bool]:
    found = _seen[id(code)] = (code, is_users_file(code.co_filename))
    return found


def kind(code: CodeType) -> int:
    """As the pen has it: 1 is the user's, 2 the floor that their program stands on, 0 all else."""
    return 2 if code.co_filename == _FLOOR else int(look_at(code)[1])


def is_users_file(name: str) -> bool:
    if name.startswith("<") and name != "<stdin>" and (name != "<string>" or sys.argv[:1] != ["-c"]):
        return False  # importlib's own, a dataclass's methods
    if name.startswith(_OURS):
        return name.startswith(_PROGRAMS)
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


def chain(frame: FrameType | None) -> Places:
    """The user's frames from this one outwards, innermost first: how the program came to the op. Done for every op."""
    found: list[int] = []
    inner = frame
    while frame is not None:
        code = frame.f_code
        if (_seen.get(id(code)) or look_at(code))[1]:
            found += (id(code), frame.f_lasti)
            if len(found) == _MOST_NUMBERS:
                break
        frame = frame.f_back
    return tuple(found) if found else _outermost(inner)


def _outermost(frame: FrameType | None) -> Places:
    if frame is None:
        return ()
    while frame.f_back is not None:
        frame = frame.f_back
    return (id(frame.f_code), frame.f_lasti)


def raised(traceback: TracebackType | None) -> Places:
    """The user's frames of a traceback, innermost first; all of them, if none is."""
    frames: list[tuple[CodeType, int]] = []
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lasti))
        traceback = traceback.tb_next
    users = [place for place in frames if look_at(place[0])[1]] or frames
    return tuple(number for code, at in reversed(users) for number in (id(code), at))


def is_users(places: Places) -> bool:
    """Whether the innermost is the user's."""
    return _seen[places[0]][1]


def describe(places: Places) -> list[Site]:
    codes = [_seen[number][0] for number in places[::2]]
    return [(code.co_filename, _line(code, at), code.co_name) for code, at in zip(codes, places[1::2], strict=True)]


def _line(code: CodeType, at: int) -> int:
    lines = (line for start, end, line in code.co_lines() if start <= at < end)
    return next(lines, None) or code.co_firstlineno

"""Finds the user's own lines on a stack: not torch's, not Python's, not ours."""

import itertools
import re
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType, TracebackType

_OURS = str(Path(__file__).parents[1]) + "/"
_AUTOSTART = str(Path(__file__).parents[2] / "rollcall_autostart.py")
_ENTRY_POINT = f"{_OURS}worker/main.py"  # runs the user's program: frames outside of it are not theirs
_PROGRAMS = (f"{_OURS}demo/", f"{_OURS}lab/experiments/")  # programs like a user's, shipped with rollcall
_PYTHON = tuple(
    {path.rstrip("/") + "/" for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")) if path}
)
_INSTALLED = ("/site-packages/", "/dist-packages/", "/torchinductor_")  # the last: what the compiler wrote
_MOST_NUMBERS = 16  # of eight frames
MOST_CODES = 100_000  # a program that makes new code with every step must not fill the memory
Site = tuple[str, int, str]  # file, line, function


# By id: known code objects, and whether they are the user's. By id, since Python hashes a code object by its content
# every time; the object is kept here, so that no other object gets its id.
_known: dict[int, tuple[CodeType, bool]] = {}
# The id of a code object and the index of an instruction, for each frame outwards. Line numbers are computed later:
# that is slow.
Places = tuple[int, ...]


def _classify(code: CodeType) -> tuple[CodeType, bool]:
    if len(_known) >= MOST_CODES and id(code) not in _known:  # not kept, so its id may become that of another
        return code, False
    found = _known[id(code)] = (code, is_users_file(code.co_filename))
    return found


def kind(code: CodeType) -> int:
    """Returns the kind for C++: 1 is the user's code, 2 the function that runs their program, 0 all other."""
    return 2 if code.co_filename == _ENTRY_POINT else int(_classify(code)[1])


def is_users_file(name: str) -> bool:
    if name.startswith("<") and name != "<stdin>" and (name != "<string>" or sys.argv[:1] != ["-c"]):
        return False  # importlib's own, a dataclass's methods
    if name.startswith(_OURS):
        return name.startswith(_PROGRAMS)
    if name == _AUTOSTART:
        return False
    return not any(part in name for part in _INSTALLED) and not name.startswith(_PYTHON)


def waits_for_data(frames: Iterable[tuple[str, str]]) -> bool:
    """Whether a stack waits for data: a loader has called the user's code, or the user's code takes something from a
    queue. The stack is given by file and function, from the innermost frame outwards."""
    known = list(frames)
    return is_made_elsewhere(known) or any(_LOADER in file for file, _ in known)


def is_made_elsewhere(frames: Iterable[tuple[str, str]]) -> bool:
    """Whether a stack takes something from a queue, below the user's code: another thread or process makes it."""
    inner = itertools.takewhile(lambda frame: not is_users_file(frame[0]), frames)
    return any(function in _TAKES and _QUEUES.search(file) is not None for file, function in inner)


def saves_or_compiles(files: Iterable[str]) -> bool:
    """Whether a stack, given by its files, is in a save or a load of a checkpoint, or in a compile: these may take
    minutes without using the processor."""
    return any(part in file for file in files for part in _SLOW_WORK)


_SLOW_WORK = (
    "/torch/serialization.py",
    "/torch/distributed/checkpoint/",
    "/safetensors/",
    "/torch/_dynamo/",
    "/torch/_inductor/",
    "/triton/compiler/",
    f"{_OURS}train/checkpoint/",
)
_LOADER = "/torch/utils/data/"
_QUEUES = re.compile(r"/queue\.py$|/multiprocessing/(queues|connection|pool)\.py$")
# Functions of these files that return what another thread or process gives. Who puts something waits for room.
_TAKES = frozenset({"get", "next", "recv", "_recv", "recv_bytes", "_recv_bytes", "poll", "_poll", "wait"})


def user_frames(frame: FrameType | None) -> Places:
    """The user's frames from this one outwards, innermost first; the outermost frame if there is none. Runs for every
    op."""
    found: list[int] = []
    inner = frame
    while frame is not None:
        code = frame.f_code
        if (_known.get(id(code)) or _classify(code))[1]:
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
    """The user's frames of a traceback, innermost first; all frames if none is the user's."""
    frames: list[tuple[CodeType, int]] = []
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lasti))
        traceback = traceback.tb_next
    users = [place for place in frames if _classify(place[0])[1]] or frames
    return tuple(number for code, at in reversed(users) for number in (id(code), at))


def is_users(places: Places) -> bool:
    """Whether the innermost frame is the user's."""
    return places[0] in _known and _known[places[0]][1]


def describe(places: Places) -> list[Site]:
    known = [(_known[number][0], at) for number, at in zip(places[::2], places[1::2], strict=True) if number in _known]
    return [(code.co_filename, _line(code, at), code.co_name) for code, at in known]


def _line(code: CodeType, at: int) -> int:
    lines = (line for start, end, line in code.co_lines() if start <= at < end)
    return next(lines, None) or code.co_firstlineno

"""The user's part of a traceback or stack: without the frames of rollcall that call the program, and without the frames
of the recorder between the program and torch."""

import runpy
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_OURS = str(Path(__file__).parents[1])
_RECORDER = str(Path(_OURS, "record"))
_HIDDEN = ("<frozen runpy>", runpy.__file__, "<frozen importlib")


def is_ours(filename: str) -> bool:
    return filename.startswith((_OURS, *_HIDDEN))


def users_part(where: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's first frame on. It is changed in place, where the recorder has frames in it."""
    where = _skip(where, is_ours)
    part = where
    while part is not None:
        part.tb_next = _skip(part.tb_next, lambda filename: filename.startswith(_RECORDER))
        part = part.tb_next
    return where


def _skip(where: TracebackType | None, is_hidden: Callable[[str], bool]) -> TracebackType | None:
    while where is not None and is_hidden(where.tb_frame.f_code.co_filename):
        where = where.tb_next
    return where


def users_stack(text: str) -> str:
    """The output of faulthandler, most recent call first, without the frames of rollcall."""
    kept: list[str] = []
    for line in text.splitlines():
        quoted = line.split('"')
        if not (line.startswith("  File") and len(quoted) > 1 and is_ours(quoted[1])):
            kept.append(line)
    return "\n".join(kept)

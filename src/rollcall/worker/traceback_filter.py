"""The user's part of a traceback or stack, without the frames of rollcall that called the program."""

import runpy
from pathlib import Path
from types import TracebackType

_OURS = str(Path(__file__).parents[1])
_HIDDEN = ("<frozen runpy>", runpy.__file__, "<frozen importlib")


def is_ours(filename: str) -> bool:
    return filename.startswith((_OURS, *_HIDDEN))


def users_part(where: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's first frame on."""
    while where is not None and is_ours(where.tb_frame.f_code.co_filename):
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

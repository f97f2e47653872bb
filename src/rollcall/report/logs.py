"""What each rank printed, line by line, with its time. Control characters are removed."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_MOST_LINE = 400
_MOST_LINES = 20_000  # of all ranks together
_LEAST_LINES = 20  # of each rank, however many there are
_MOST_READ_BYTES = 4 << 20  # of each rank: the end counts more than the beginning
_MOST_RANKS = 512
_STAMP = np.dtype([("time_ns", "<u8"), ("offset", "<u8")])
# Colours, cursor movements and titles for a terminal; other invisible characters.
_CONTROL = re.compile(
    r"\x1b\[[0-9;?:]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


@dataclass(frozen=True)
class LogLine:
    attempt: int
    rank: int
    time_ns: int  # by the wall clock of its host; 0: not known
    text: str


def read(folder: Path) -> tuple[list[LogLine], int]:
    """The lines of all ranks in order of time; and how many were left out."""
    paths = sorted((folder / "logs").glob("attempt-*/rank-*.log"), key=_place)
    most = max(_LEAST_LINES, _MOST_LINES // max(len(paths), 1))
    lines: list[LogLine] = []
    left_out = 0
    for path in paths[:_MOST_RANKS]:
        try:
            found, more = _read(path, most)
        except OSError:
            continue
        lines += found
        left_out += more
    return sorted(lines, key=lambda line: line.time_ns), left_out


def _place(path: Path) -> tuple[int, int]:
    return _number(path.parent.name), _number(path.stem)


def _number(name: str) -> int:
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _read(path: Path, most: int) -> tuple[list[LogLine], int]:
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - _MOST_READ_BYTES)
        file.seek(start)
        data = file.read(_MOST_READ_BYTES)
    attempt, rank = _place(path)
    stamps = _stamps(path.with_suffix(".times"))
    raw = data.split(b"\n")
    offsets = start + np.concatenate(([0], np.cumsum([len(line) + 1 for line in raw])))[:-1]
    shown = [place for place, line in enumerate(raw) if line.strip()]
    kept = shown[-most:]
    lines = [LogLine(attempt, rank, _time_of(int(offsets[place]), stamps), clean(raw[place])) for place in kept]
    return lines, len(shown) - len(kept) + (start > 0)


def _stamps(path: Path) -> NDArray[np.void]:
    try:
        raw = path.read_bytes()
    except OSError:
        raw = b""
    return np.frombuffer(raw[: len(raw) // _STAMP.itemsize * _STAMP.itemsize], dtype=_STAMP)


def _time_of(offset: int, stamps: NDArray[np.void]) -> int:
    place = int(np.searchsorted(stamps["offset"], offset, side="right")) - 1
    return int(stamps["time_ns"][place]) if place >= 0 else 0


def clean(raw: bytes) -> str:
    """One line as it is shown: the last state of a progress bar, no control characters, shortened."""
    last = raw.rstrip(b"\r").rpartition(b"\r")[2]
    text = _CONTROL.sub("", last[: 8 * _MOST_LINE].decode("utf-8", "replace"))
    if len(last) <= 8 * _MOST_LINE and len(text) <= _MOST_LINE:
        return text
    return f"{text[:_MOST_LINE]} … ({len(last):,} bytes)"

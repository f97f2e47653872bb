"""Finds the dumps in a folder, and tells by its name which rank wrote each."""

import bz2
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from rollcall.explain.dumps import plain

_PICKLE = re.compile(rb"\x80[\x02-\x05]")  # protocol 2 to 5
_UNPACK: dict[bytes, Callable[[Path, str], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_PACKED = (*_UNPACK, b"\x28\xb5\x2f\xfd", b"PK\x03\x04")  # the last two are zstd and zip
_SUFFIX = re.compile(r"(\.(json|gz|bz2|xz))+$", re.I)
_JSON_KEYS = (b'"entries"', b'"pg_config"', b'"comm_lib_version"')  # torch writes one of them first
_BEGINNING = 4096
_RANK = re.compile(r"(?<!local)(?<!local[_.-])(?<!node)(?<!node[_.-])rank[_.-]?(\d+)", re.I)
_NUMBER = re.compile(r"\d+")
_DEPTH = 3  # a folder of folders, one per host
_OURS = ("run.json", "trace.json")  # beside dumps in a run's folder
_MOST_BYTES = 2 << 30  # of one dump: torch writes some MB; reading more would fill the memory
MOST_RANKS = 1 << 20  # a larger number is no rank


class NotADumpError(ValueError):
    """The file is whole, and something else."""


def find(place: Path) -> list[Path]:
    """All files that may be dumps, in order of rank. `place` may be one dump."""
    if place.is_file():
        return [place]
    found = [path for path in _files(place, _DEPTH) if _may_be_dump(path)]
    return sorted(found, key=lambda path: (rank_in(path.name) or 0, path.name))


def _files(folder: Path, depth: int) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if depth and folder.is_dir() else ():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _files(path, depth - 1)
        elif path.is_file() and path.name not in _OURS:
            yield path


def _may_be_dump(path: Path) -> bool:
    """By its first bytes. An empty file counts if its name is that of a dump: it is one that was never written. So does
    one that cannot be unpacked, to be told as such."""
    try:
        with _open(path) as file:
            begin = file.read(_BEGINNING)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return bool(_RANK.search(path.name)) and path.is_file()
    if not begin:
        return bool(_RANK.search(path.name)) and path.suffix in ("", ".pkl", ".pickle", ".json")
    if begin.startswith(_PACKED):
        return bool(_RANK.search(path.name))
    is_json = begin.lstrip().startswith(b"{") and (path.suffix == ".json" or any(key in begin for key in _JSON_KEYS))
    return bool(_PICKLE.match(begin) or is_json)


def _open(path: Path) -> IO[bytes]:
    """Unpacks what it reads, if the file is compressed."""
    with open(path, "rb") as file:
        begin = file.read(8)
    unpack = next((unpack for magic, unpack in _UNPACK.items() if begin.startswith(magic)), open)
    opened: IO[bytes] = unpack(path, "rb")
    return opened


def rank_in(name: str, world_size: int = MOST_RANKS) -> int | None:
    """The number after "rank", or the last number; in a world of this size, the last one that is a rank there."""
    found = _RANK.findall(name) or _NUMBER.findall(_SUFFIX.sub("", name))
    numbers = [int(each) for each in found if len(each) < _MOST_DIGITS and int(each) < MOST_RANKS]
    ranks = [number for number in numbers if number < world_size]
    return next(reversed(ranks or numbers), None)


_MOST_DIGITS = 9


def read(path: Path) -> dict[str, Any]:
    """The content of a dump; ValueError with the reason if it is none."""
    try:
        with _open(path) as file:
            data = file.read(_MOST_BYTES + 1)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ValueError("it is compressed, and damaged or cut off") from error
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror or error})") from error
    if len(data) > _MOST_BYTES:
        raise ValueError("it is larger than any dump")
    if not data:
        raise ValueError("it is empty")
    if data.startswith(_PACKED):
        raise ValueError("it is compressed: unpack it first")
    content = _parse(data)
    if not isinstance(content, dict) or not ({"entries", "pg_config"} & set(content)):
        raise NotADumpError("it is no dump of the Flight Recorder")
    return content


def _parse(data: bytes) -> Any:
    if _PICKLE.match(data):
        return plain.loads(data)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is cut off, or no JSON") from error

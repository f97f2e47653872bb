"""Reads a ring file. A file of any content ends in values, or in a ValueError that says what is wrong."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from rollcall.record import ring_format

_NUMPY = {"Q": "u8", "I": "u4", "H": "u2", "i": "i4"}
DTYPE = np.dtype([(name, f"<{_NUMPY[code]}") for name, code in ring_format.FIELDS.items()])
assert DTYPE.itemsize == ring_format.RECORD.size
_MOST_RANKS = 1 << 22  # a damaged header may have any number


@dataclass(frozen=True)
class Header:
    rank: int
    world_size: int
    host: str
    pid: int
    count: int
    names_end: int
    names_bytes: int
    capacity: int
    counters: int
    wall_ns: int  # the same moment by both clocks
    monotonic_ns: int
    version: int = ring_format.VERSION
    unnamed: int = 0  # how often there was no room for a name
    stopped: str = ""  # why recording stopped before the program did; empty: it did not

    @property
    def kept(self) -> int:
        """The most records that can be there."""
        return min(self.count, self.capacity)

    @property
    def overwritten(self) -> int:
        return self.count - self.kept


def read_header(data: bytes) -> Header:
    """ValueError if it is no ring of this version."""
    if len(data) < ring_format.HEADER_BYTES:
        raise ValueError("it is cut off within its header")
    magic, version, size, rank, world_size, _, pid, names_bytes, capacity, host, wall_ns, monotonic_ns = (
        ring_format.HEADER.unpack_from(data)
    )
    if magic != ring_format.MAGIC:
        raise ValueError("it is not a ring of rollcall")
    if version not in ring_format.READABLE or size != ring_format.RECORD.size:
        readable = " and ".join(map(str, ring_format.READABLE))
        raise ValueError(
            f"its format is version {version}, and this rollcall reads versions {readable}:"
            " use the rollcall that recorded it"
        )
    (count,) = ring_format.NUMBER.unpack_from(data, ring_format.COUNT_AT)
    (names_end,) = ring_format.NUMBER.unpack_from(data, ring_format.NAMES_END_AT)
    (counters,) = ring_format.NUMBER.unpack_from(data, ring_format.COUNTERS_AT)
    (unnamed,) = ring_format.NUMBER.unpack_from(data, ring_format.UNNAMED_AT)
    is_sound = 0 < capacity < 2**40 and names_bytes <= 2**32 and names_end <= names_bytes
    is_sound = is_sound and max(count, wall_ns, monotonic_ns) < _MOST
    if not is_sound or not 0 <= rank < world_size <= _MOST_RANKS or counters > ring_format.MOST_COUNTERS:
        raise ValueError("its header does not fit together")
    return Header(
        rank,
        world_size,
        host.rstrip(b"\0").decode(errors="replace"),
        pid,
        count,
        names_end,
        names_bytes,
        capacity,
        counters,
        wall_ns,
        monotonic_ns,
        version,
        unnamed,
        read_stop(data[ring_format.STOPPED_AT :]),
    )


def read_stop(data: bytes) -> str:
    return data[: ring_format.STOPPED_BYTES].partition(b"\0")[0].decode(errors="replace")


Name = tuple[str, int, bytes]  # kind, number, value as JSON


@dataclass(frozen=True)
class ReadRing:
    """The records of a ring, oldest first; what they name by number; sums of overwritten records."""

    header: Header
    records: NDArray[Any]
    names: list[Name]
    counters: list[tuple[int, int, int, int, int]]  # group, op, count, bytes, nanoseconds


def read(path: Path, newest: int | None = None) -> ReadRing:
    """All records, or the `newest` so many."""
    try:
        with open(path, "rb") as file:
            data = file.read(_BEGINNING)
            header = read_header(data[: ring_format.HEADER_BYTES])
            counters = data[ring_format.HEADER_BYTES : ring_format.NAMES_AT]
            names_end = ring_format.NAMES_AT + header.names_end
            names = data[ring_format.NAMES_AT : names_end] + file.read(max(names_end - _BEGINNING, 0))
            raw = b"".join(_read_stretches(file, header, header.kept if newest is None else newest))
    except OSError as error:
        raise ValueError(f"it cannot be read ({error.strerror})") from error
    except OverflowError as error:
        raise ValueError("its header does not fit together") from error
    return ReadRing(header, _records(header, raw), _names(names), _counters(header, counters))


_BEGINNING = ring_format.NAMES_AT + (16 << 10)  # header, counters, and all names of most rings


def _read_stretches(file: BinaryIO, header: Header, newest: int) -> Iterator[bytes]:
    for at, size_bytes in ring_format.stretches(header.count, newest, header.capacity, header.names_bytes):
        file.seek(at)
        yield file.read(size_bytes)


def count(path: Path) -> tuple[int, int]:
    """The most records that a ring can have, and the size of its world; 0 and 0 if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            header = read_header(file.read(ring_format.HEADER_BYTES))
            size_bytes = os.fstat(file.fileno()).st_size
    except (OSError, ValueError):
        return 0, 0
    room = max(0, size_bytes - ring_format.NAMES_AT - header.names_bytes) // ring_format.RECORD.size
    return min(header.kept, room), header.world_size


def _records(header: Header, raw: bytes) -> NDArray[Any]:
    whole = len(raw) // ring_format.RECORD.size * ring_format.RECORD.size
    records = np.frombuffer(raw[:whole] if whole < len(raw) else raw, dtype=DTYPE)
    numbers, has_op = records["number"], records["op"] < len(ring_format.OPS)
    first, last = header.overwritten + 1, header.count
    is_rising = bool((numbers[1:] > numbers[:-1]).all())
    if is_rising and has_op.all() and (not len(numbers) or (numbers[0] >= first and numbers[-1] <= last)):
        return records
    # In a record that is being overwritten, or in a damaged file, the number is wrong.
    records = records[(numbers >= first) & (numbers <= last) & has_op]
    return records[np.argsort(records["number"], kind="stable")]


def _names(text: bytes) -> list[Name]:
    """The names of many ranks are the same: they share one list."""
    return _shared_names(text) if len(text) < _BEGINNING else read_names(text)


@lru_cache(256)
def _shared_names(text: bytes) -> list[Name]:
    return read_names(text)


def read_names(text: bytes) -> list[Name]:
    """Lines that are damaged are skipped."""
    return [(kind.decode(errors="replace"), int(number), value) for kind, number, value in _NAME.findall(text)]


_NAME = re.compile(rb'^\["([^",]*)",(\d+),(.*)\]$', re.M)


def _counters(header: Header, data: bytes) -> list[tuple[int, int, int, int, int]]:
    whole = data[
        : min(
            header.counters * ring_format.COUNTER.size, len(data) // ring_format.COUNTER.size * ring_format.COUNTER.size
        )
    ]
    found = ring_format.COUNTER.iter_unpack(whole)
    return [
        (group, op, count, size_bytes, blocked_ns)
        for group, op, _, count, size_bytes, blocked_ns in found
        if op < len(ring_format.OPS) and max(count, size_bytes, blocked_ns) < _MOST
    ]


_MOST = 1 << 62  # nothing real is larger: it is damaged


def parse(value: bytes) -> Any:
    """A name's value; None if it is damaged."""
    try:
        return _DECODER.decode(value.decode())  # json.loads looks for the encoding first
    except ValueError:
        return None


_DECODER = json.JSONDecoder()

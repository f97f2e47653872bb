"""The ops of all ranks as bars in one lane per rank: when each blocked its rank, how long it waited and communicated.

All of it is columns: a million ops are a few arrays.
"""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.evidence import Evidence
from rollcall.explain.loading import rings
from rollcall.explain.loading.load import clocks
from rollcall.explain.loading.table import Readings, site_in_words
from rollcall.record import ring_format
from rollcall.runs import ring_folders

_MOST_BANDS = 20_000
_MOST_SAMPLES = 300_000
_MOST_TEXT = 160
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, with its bits spread evenly


@dataclass(frozen=True)
class Bars:
    """The ops of one attempt, rank by rank, each rank's in the order in which they blocked it. Times in nanoseconds."""

    row: NDArray[np.intp]  # in the table
    rank: NDArray[np.int32]
    entered_ns: NDArray[np.int64]
    begin_ns: NDArray[np.int64]  # when it began to block its rank
    wait_ns: NDArray[np.int64]
    busy_ns: NDArray[np.int64]  # communicating
    call: NDArray[np.int64]  # ops of all ranks that belong together have the same number
    end_ns: int = 0  # of the attempt


def draw(evidence: Evidence) -> Bars:
    table, found = evidence.table, evidence.intervals
    kept = np.flatnonzero(~table.is_event)
    order = kept[np.lexsort((found.blocked_ns[kept], table.rank[kept]))]
    shift_ns = found.shift_ns[order]
    return Bars(
        row=order,
        rank=table.rank[order],
        entered_ns=table.entered_ns[order] - shift_ns,
        begin_ns=found.blocked_ns[order] - shift_ns,
        wait_ns=found.waiting_ns[order],
        busy_ns=found.communicating_ns[order],
        call=_calls(evidence)[order],
        end_ns=found.end_ns,
    )


def _calls(evidence: Evidence) -> NDArray[np.int64]:
    """Per row: the number of its call; a send and its receive are one, too."""
    calls = evidence.calls
    call = np.full(len(evidence.table), -1, dtype=np.int64)
    call[calls.rows] = calls.numbers
    sends, recvs = evidence.pairs.matched()
    call[sends] = call[recvs] = len(calls) + np.arange(len(sends))
    unmatched = np.flatnonzero(call < 0)
    call[unmatched] = len(calls) + len(sends) + np.arange(len(unmatched))
    return call


@dataclass(frozen=True)
class Kinds:
    """Ops that differ in nothing but their time have one number; `descriptions` say what a number stands for."""

    number: NDArray[np.int64]  # per bar
    descriptions: list[dict[str, Any]] = field(default_factory=list)


def kinds(evidence: Evidence, bars: Bars) -> Kinds:
    table = evidence.table
    if not len(bars.row):
        return Kinds(np.zeros(0, dtype=np.int64))
    names = ("op", "group", "site", "signature", "reduce", "peer", "tag", "phase", "thread", "size_bytes")
    flags = table.flags & (ring_format.ASYNC | ring_format.FAILED | ring_format.BUCKET)
    taken = [column[bars.row] for column in (*(getattr(table, name) for name in names), flags)]
    differing = [column for column in taken if column.min() != column.max()]
    first, number = _classes(differing, len(bars.row))
    return Kinds(number, [_describe(evidence, int(bars.row[place])) for place in first])


def _classes(columns: list[NDArray[Any]], length: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Rows that are the same in all columns are one class: the first row of each class, and the class of each row."""
    mixed = np.zeros(length, dtype=np.uint64)
    for column in columns:  # a hash of the row, so that one sort is enough: sorting takes most of the time
        mixed = (mixed + column.astype(np.int64).view(np.uint64)) * _MIX
        mixed ^= mixed >> np.uint64(29)
    _, first, number = np.unique(mixed, return_index=True, return_inverse=True)
    if all((column == column[first[number]]).all() for column in columns):
        return first, number
    number = np.zeros(length, dtype=np.int64)  # two rows that differ have the same hash
    for column in columns:
        _, part = np.unique(column, return_inverse=True)
        _, first, number = np.unique(number * (int(part.max()) + 1) + part, return_index=True, return_inverse=True)
    return first, number


def _describe(evidence: Evidence, row: int) -> dict[str, Any]:
    op = evidence.table.get(row)
    found: dict[str, Any] = {"op": op.op, "group": op.group.name, "ranks": len(op.group.ranks), "bytes": op.size_bytes}
    if op.site:
        found["site"], found["function"] = str(op.site), op.site.function[:_MOST_TEXT]
    if tensors := tensors_in_words(op.signature):
        found["tensors"] = tensors
    more = {
        "reduce": op.reduce,
        "phase": op.phase,
        "thread": op.thread,
        "async": op.is_async,
        "failed": op.is_failed,
        "ddp": op.is_bucket,
        "tag": op.tag,
    }
    found |= {name: value for name, value in more.items() if value}
    if op.peer >= 0:
        found["peer"] = op.peer
    return found


def tensors_in_words(signature: dict[str, Any]) -> str:
    """`float32 [64, 128]`, and how many more tensors there are."""
    shapes, dtypes = signature.get("shapes") or [], signature.get("dtypes") or []
    if not shapes or not dtypes:
        return ""
    text = f"{dtypes[0]} {shapes[0]}"
    return (text if len(shapes) == 1 else f"{text} and {len(shapes) - 1} more")[:_MOST_TEXT]


@dataclass(frozen=True)
class Band:
    """A phase of the program."""

    name: str
    begin_ns: int
    end_ns: int


def bands(evidence: Evidence, bars: Bars) -> list[Band]:
    """The phases of the first rank that has any: all ranks run the same program."""
    table = evidence.table
    rows = np.flatnonzero(table.is_one_of("phase", "ddp_forward"))
    mine = rows[table.rank[rows] == table.rank[rows[0]]][:_MOST_BANDS] if len(rows) else rows
    return [Band(op.phase[:_MOST_TEXT], op.entered_ns, op.completed_ns or bars.end_ns) for op in map(table.get, mine)]


@dataclass(frozen=True)
class Samples:
    """Where ranks were seen while they were in no op, rank by rank. Times in nanoseconds."""

    rank: NDArray[np.int32]
    begin_ns: NDArray[np.int64]
    length_ns: NDArray[np.int64]
    place: NDArray[np.int64]  # one of
    places: list[str]


def samples(evidence: Evidence) -> Samples:
    """The samples of main threads; of very many, the longest ones."""
    table = evidence.table
    rows = np.flatnonzero(table.is_one_of("sample") & (table.thread == 0))
    length_ns = np.maximum(table.completed_ns[rows] - table.entered_ns[rows], 0)
    if len(rows) > _MOST_SAMPLES:
        longest = np.sort(np.argpartition(-length_ns, _MOST_SAMPLES)[:_MOST_SAMPLES])
        rows, length_ns = rows[longest], length_ns[longest]
    begin_ns = table.entered_ns[rows] - evidence.intervals.shift_ns[rows]
    order = np.lexsort((begin_ns, table.rank[rows]))
    sites, place = np.unique(table.site[rows[order]], return_inverse=True)
    places = [site_in_words(table.names.sites[site]) for site in sites.tolist()]
    return Samples(table.rank[rows[order]], begin_ns[order], length_ns[order], place, places)


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run, as it is drawn."""

    number: int
    evidence: Evidence
    bars: Bars
    kinds: Kinds

    @classmethod
    def of(cls, evidence: Evidence) -> "Attempt":
        bars = draw(evidence)
        return cls(evidence.run.attempt, evidence, bars, kinds(evidence, bars))

    @property
    def begin_ns(self) -> int:
        """Its first op; 0 where it has none."""
        return int(self.bars.entered_ns.min()) if len(self.bars.row) else 0


@dataclass(frozen=True)
class Timeline:
    """All attempts on one axis. `zero_ns` is where it begins, by the recording's clock; `wall_ns` the same moment by
    the wall clock."""

    attempts: list[Attempt]
    zero_ns: int
    wall_ns: int

    @property
    def seconds(self) -> float:
        return max((max(attempt.bars.end_ns for attempt in self.attempts) - self.zero_ns) / 1e9, 1e-6)


def timeline(attempts: list[Attempt], folder: Path, facts: dict[str, Any], zero_ns: int | None = None) -> Timeline:
    """Begins with the first op, or at `zero_ns` if that is earlier."""
    begins = [attempt.begin_ns for attempt in attempts if len(attempt.bars.row)]
    if zero_ns is None or any(begin_ns < zero_ns for begin_ns in begins):
        zero_ns = min(begins, default=0)
    return Timeline(attempts, zero_ns, zero_ns + _wall_minus_recording(folder, clocks(facts)))


def _wall_minus_recording(folder: Path, readings: list[Readings]) -> int:
    """Rings use the monotonic clock; their headers have one moment by both clocks."""
    for path in (path for place in ring_folders(folder).values() for path in sorted(place.glob("*.ring"))):
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            header = rings.read_header(file.read(ring_format.HEADER_BYTES))
            clock = readings[header.rank] if header.rank < len(readings) else []
            return header.wall_ns - (header.monotonic_ns - (clock[0][1] if clock else 0))
    return 0

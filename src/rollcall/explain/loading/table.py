"""Every op of every rank, a column per field: numpy searches ten million ops, and only what stands out becomes an
object."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.loading import rings
from rollcall.record import ring_format


@dataclass(frozen=True)
class Site:
    """A line of the program, and its callers, innermost first."""

    file: str
    line: int
    function: str
    callers: tuple["Site", ...] = ()

    @property
    def chain(self) -> tuple["Site", ...]:
        return self, *self.callers

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def site_in_words(site: Site | None) -> str:
    """`train.py:7 in step`; a function's name can be of any length."""
    return f"{site} in {site.function}"[:_MOST_TEXT] if site else ""


_MOST_TEXT = 160  # characters: two lines of a terminal


@dataclass(frozen=True)
class Group:
    name: str
    ranks: tuple[int, ...]

    def __hash__(self) -> int:  # computed often, and a world has many ranks
        return hash(self.name)

    @property
    def is_non_member(self) -> bool:
        """Stands for any group whose op a rank called without being in it."""
        return self.name == ring_format.NON_MEMBER_GROUP


UNKNOWN_GROUP = Group("?", ())


@dataclass(frozen=True, slots=True)
class Op:
    """One communication call on one rank, with the names that its record has by number."""

    rank: int
    row: int
    op: str
    group: Group
    seq: int
    site: Site | None
    signature: dict[str, Any]
    peer: int
    tag: int
    thread: int
    phase: str
    reduce: str
    flags: int
    entered_ns: int
    issued_ns: int
    waited_ns: int
    completed_ns: int
    size_bytes: int

    @property
    def is_async(self) -> bool:
        return bool(self.flags & ring_format.ASYNC)

    @property
    def is_failed(self) -> bool:
        return bool(self.flags & ring_format.FAILED)

    @property
    def is_bucket(self) -> bool:
        """DDP's reducer made it."""
        return bool(self.flags & ring_format.BUCKET)

    @property
    def waits_for_data(self) -> bool:
        """Whether the rank of a sample was fetching its input."""
        return bool(self.flags & ring_format.INPUT)

    @property
    def is_blocked(self) -> bool:
        """Its rank is in it, and it is not over."""
        return bool(ring_format.is_blocked(self.flags, self.waited_ns, self.completed_ns))

    @property
    def is_non_member(self) -> bool:
        """Its rank is not in its group."""
        return self.group.is_non_member

    @property
    def is_point_to_point(self) -> bool:
        return self.op in ("send", "recv")


@dataclass
class Names:
    """What records name by number, with the same numbers for all ranks; 0 is nothing."""

    groups: list[Group] = field(default_factory=lambda: [UNKNOWN_GROUP])
    sites: list[Site | None] = field(default_factory=lambda: [None])
    signatures: "Signatures" = field(default_factory=lambda: Signatures())
    phases: list[str] = field(default_factory=lambda: [""])
    _known: dict[str, dict[bytes, int]] = field(default_factory=dict)  # by kind and value
    # By identity of a ring's names: they, and their numbers. Rings with the same names share one list of them.
    _mapped: dict[int, tuple[list[rings.Name], "Numbers"]] = field(default_factory=dict)

    def numbers(self, names: list[rings.Name]) -> "Numbers":
        """By kind: from the numbers of one ring to those of the table. The last is 0, for numbers that are damaged."""
        kept, found = self._mapped.get(id(names), (None, {}))
        if kept is not names:
            found = {kind: self._numbers_of(kind, names) for kind in _NAMED}
            if len(names) < _FEW_NAMES:
                self._mapped[id(names)] = names, found
        return found

    def _numbers_of(self, kind: str, names: list[rings.Name]) -> NDArray[np.uint32]:
        mine = [(number, value) for its, number, value in names if its == kind and number <= _MOST_NAMES]
        found = np.zeros(max([number for number, _ in mine], default=0) + 2, dtype=np.uint32)
        known = self._known.setdefault(kind, {})
        new = [value for value in dict.fromkeys(value for _, value in mine) if value not in known]
        known.update(zip(new, range(len(known) + 1, len(known) + 1 + len(new)), strict=True))
        self._add(kind, new)
        found[[number for number, _ in mine]] = [known[value] for _, value in mine]
        return found

    def _add(self, kind: str, values: list[bytes]) -> None:
        match kind:
            case "group":
                self.groups += [parse_group(rings.parse(value)) for value in values]
            case "site":
                self.sites += [parse_site(rings.parse(value)) for value in values]
            case "signature":
                self.signatures.extend(values)
            case "phase":
                self.phases += [str(rings.parse(value)) for value in values]


Numbers = dict[str, NDArray[np.uint32]]
_MOST_NAMES = 1 << 22  # a ring has no room for more: a larger number is damaged
_FEW_NAMES = 1000  # names that are worth keeping: ranks that have as many rarely have the same


class Signatures(Sequence[dict[str, Any]]):
    """Parsed when they are looked at: an all_to_all may have another one in each call, on each rank."""

    def __init__(self) -> None:
        self._values = [b"{}"]
        self._parsed: dict[int, dict[str, Any]] = {}

    def extend(self, values: list[bytes]) -> None:
        self._values += values

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, number: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, number: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, number: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(number, slice):
            return [self[each] for each in range(len(self))[number]]
        found = self._parsed.get(number)
        return self._parse(number) if found is None else found

    def all_of(self, numbers: list[int]) -> list[dict[str, Any]]:
        """Parsed together, which is quicker, and not kept."""
        parsed = rings.parse(b"[%s]" % b",".join([self._values[number] for number in numbers]))
        is_whole = isinstance(parsed, list) and all(isinstance(each, dict) for each in parsed)
        return parsed if is_whole and len(parsed) == len(numbers) else [self[number] for number in numbers]

    def are_on_gpu(self) -> NDArray[np.bool_]:
        """Per signature; without parsing them."""
        return np.array([b'"cuda"' in value for value in self._values])

    def _parse(self, number: int) -> dict[str, Any]:
        parsed = rings.parse(self._values[number])
        if len(self._parsed) >= _MOST_PARSED:
            self._parsed.clear()
        found = self._parsed[number] = parsed if isinstance(parsed, dict) else {}
        return found


_MOST_PARSED = 20_000  # that are kept: a signature of a thousand ranks takes 20 KB


def parse_group(parsed: Any) -> Group:
    """The ranks of a group are written one by one, or as [first, last]."""
    try:
        spans = [(rank, rank) if isinstance(rank, int) else tuple(rank) for rank in parsed["ranks"]]
        if sum(last - first for first, last in spans) > _MOST_NAMES:
            raise ValueError(spans)
        return Group(str(parsed["name"]), tuple(rank for first, last in spans for rank in range(first, last + 1)))
    except (TypeError, KeyError, ValueError):
        return UNKNOWN_GROUP


def parse_site(parsed: Any) -> Site | None:
    try:
        (file, line, function), *outer = parsed
        return Site(str(file), int(line), str(function), tuple(Site(str(f), int(n), str(g)) for f, n, g in outer))
    except (TypeError, ValueError):
        return None


# By how much a host's clock was ahead: (when by the launcher's clock, by how much, ± this), in ns.
Readings = list[tuple[int, int, int]]

_COLUMNS: dict[str, type[np.generic]] = {
    "rank": np.int32,
    "op": np.uint8,
    "flags": np.uint8,
    "reduce": np.uint8,
    "group": np.uint16,  # this, site, signature and phase become larger when there are more names
    "seq": np.uint32,
    "site": np.uint16,
    "signature": np.uint16,
    "phase": np.uint16,
    "peer": np.int32,
    "tag": np.int32,
    "thread": np.uint16,
    "entered_ns": np.int64,
    "issued_ns": np.int64,
    "waited_ns": np.int64,
    "completed_ns": np.int64,
    "size_bytes": np.uint32,  # becomes larger when an op has more than 4 GB
    "was_overwritten": np.bool_,
}
_NAMED = {"group": "groups", "site": "sites", "signature": "signatures", "phase": "phases"}
_IS_COLLECTIVE = np.frombuffer(ring_format.SORTS, dtype=np.uint8) == 0
_TIMES = ("entered_ns", "issued_ns", "waited_ns", "completed_ns")


class Table:
    """The records of all ranks, rank by rank, each rank's in order. Times are on one clock."""

    rank: NDArray[np.int32]
    op: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    reduce: NDArray[np.uint8]
    group: NDArray[np.unsignedinteger]
    seq: NDArray[np.uint32]
    site: NDArray[np.unsignedinteger]
    signature: NDArray[np.unsignedinteger]
    phase: NDArray[np.unsignedinteger]
    peer: NDArray[np.int32]
    tag: NDArray[np.int32]
    thread: NDArray[np.uint16]
    entered_ns: NDArray[np.int64]
    issued_ns: NDArray[np.int64]
    waited_ns: NDArray[np.int64]
    completed_ns: NDArray[np.int64]
    size_bytes: NDArray[np.integer]
    was_overwritten: NDArray[np.bool_]

    def __init__(self, most_rows: int) -> None:
        for name, kind in _COLUMNS.items():
            setattr(self, name, np.zeros(most_rows, dtype=kind))
        self.names = Names()
        self.spans: dict[int, tuple[int, int]] = {}  # by rank: its first row, and the row after its last
        self._end = 0

    def add(self, ring: rings.ReadRing, clock: Readings) -> None:
        """Add the records of one rank; `clock` says by how much its host's clock was ahead."""
        self.add_alike([ring], clock)

    def add_alike(self, alike: Sequence[rings.ReadRing], clock: Readings) -> None:
        """Add the records of some ranks of one host that name things by the same numbers: together, since numpy takes
        a while for each call, and there may be ten thousand ranks."""
        start = self._end
        for ring in alike:
            begin = self._end
            self._end = min(begin + len(ring.records), len(self.rank))  # it may have grown since it was counted
            self.spans[ring.header.rank] = (begin, self._end)
            self.rank[begin : self._end] = ring.header.rank
        records = alike[0].records if len(alike) == 1 else _joined([ring.records for ring in alike])
        self._add_records(records[: self._end - start], alike[0].names, clock, start, self._end)
        for ring in alike:
            if ring.header.version < _NUMBERS_CHANNELS:
                _number_channels(ring.records, self.seq[slice(*self.spans[ring.header.rank])])

    def _add_records(
        self, records: NDArray[Any], names: list[rings.Name], clock: Readings, start: int, end: int
    ) -> None:
        used = _used_fields(records)
        for name, ours in self.names.numbers(names).items():
            if name in used:
                self._widen(name, int(ours.max()), np.uint32)
                column = getattr(self, name)[start:end]
                np.take(ours.astype(column.dtype), records[name], mode="clip", out=column)
        if "size_bytes" in used:
            self._widen("size_bytes", int(records["size_bytes"].max()), np.int64)
        for name in ("op", "flags", "reduce", "seq", "peer", "tag", "thread", "size_bytes"):
            if name in used:
                getattr(self, name)[start:end] = records[name]
        self._add_times(records, clock, start, end)
        if "version_waited" in used:
            np.greater(records["version_waited"], records["version_issued"], out=self.was_overwritten[start:end])

    def _widen(self, name: str, most: int, kind: type[np.integer]) -> None:
        column = getattr(self, name)
        if most > np.iinfo(column.dtype).max:
            setattr(self, name, column.astype(kind))

    def _add_times(self, records: NDArray[Any], clock: Readings, start: int, end: int) -> None:
        for name in _TIMES:
            times = getattr(self, name)[start:end]
            times[:] = records[name]
            if clock:
                put_on_one_clock(times, clock)

    def close(self) -> None:
        """Cut the columns to what was added: a truncated file has fewer records than its header says."""
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[: self._end])

    def __len__(self) -> int:
        return self._end

    def has(self, flag: int) -> NDArray[np.bool_]:
        return (self.flags & flag) > 0

    def is_one_of(self, *ops: str) -> NDArray[np.bool_]:
        wanted = np.zeros(256, dtype=np.bool_)
        wanted[[ring_format.OP[op] for op in ops]] = True
        return np.asarray(wanted[self.op])

    @cached_property
    def is_event(self) -> NDArray[np.bool_]:
        """Records that are no communication."""
        return self.is_one_of(*(ring_format.OPS[op] for op in ring_format.EVENTS))

    @cached_property
    def is_collective(self) -> NDArray[np.bool_]:
        """Ops of a whole group, the making of groups included."""
        return np.asarray(_IS_COLLECTIVE[self.op])

    @cached_property
    def is_async(self) -> NDArray[np.bool_]:
        return self.has(ring_format.ASYNC)

    @cached_property
    def has_failed(self) -> NDArray[np.bool_]:
        return self.has(ring_format.FAILED)

    @cached_property
    def is_blocked(self) -> NDArray[np.bool_]:
        """Ops that their rank is in, and that are not over."""
        is_blocked = ring_format.is_blocked(self.flags, self.waited_ns, self.completed_ns)
        return np.asarray(is_blocked & ~self.is_event)

    @cached_property
    def is_on_gpu(self) -> NDArray[np.bool_]:
        on_gpu = self.names.signatures.are_on_gpu()
        return np.asarray(on_gpu[self.signature]) if on_gpu.any() else np.zeros(len(self), dtype=np.bool_)

    @cached_property
    def arrived_ns(self) -> NDArray[np.int64]:
        """When each rank came to each op. A host only queues the ops of a GPU: the GPU comes to an op later, when what
        was queued before is over. Who queued last need not be the last. Where nothing tells when the GPU came to an op,
        the ops before it are known to hold it up."""
        if not self.names.signatures.are_on_gpu().any():
            return self.entered_ns
        arrived_ns = self.entered_ns.copy()
        for start, end in self.spans.values():
            rows = start + np.flatnonzero(self.is_on_gpu[start:end])
            arrived_ns[rows] = np.maximum(arrived_ns[rows], self._device_came_ns(rows))
        return arrived_ns

    def _device_came_ns(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """When the GPU of a rank came to each op: by its own time, and not before the end of the ops that
        its later work waits for. Those are all but async ones, of which only the end of the wait is known. Not all
        buckets of DDP have a time, but they are reduced in order."""
        over_ns = np.where(self.is_async[rows], 0, self.completed_ns[rows])
        came_ns = np.maximum(self.issued_ns[rows], _most_before(over_ns))
        is_bucket = (self.flags[rows] & ring_format.BUCKET) > 0
        for group in np.unique(self.group[rows[is_bucket]]):
            mine = np.flatnonzero(is_bucket & (self.group[rows] == group))
            came_ns[mine] = np.maximum.accumulate(came_ns[mine])
        return came_ns

    @cached_property
    def is_non_member(self) -> NDArray[np.bool_]:
        return np.asarray(np.array([group.is_non_member for group in self.names.groups])[self.group])

    def get(self, row: int | np.integer[Any]) -> Op:
        row = int(row)
        reduce = int(self.reduce[row])
        return Op(
            rank=int(self.rank[row]),
            row=row,
            op=ring_format.OPS[self.op[row]],
            group=self.names.groups[self.group[row]],
            seq=int(self.seq[row]),
            site=self.names.sites[self.site[row]],
            signature=self.names.signatures[self.signature[row]],
            peer=int(self.peer[row]),
            tag=int(self.tag[row]),
            thread=int(self.thread[row]),
            phase=self.names.phases[self.phase[row]],
            reduce=ring_format.REDUCE_OPS[reduce] if reduce < len(ring_format.REDUCE_OPS) else "",
            flags=int(self.flags[row]),
            entered_ns=int(self.entered_ns[row]),
            issued_ns=int(self.issued_ns[row]),
            waited_ns=int(self.waited_ns[row]),
            completed_ns=int(self.completed_ns[row]),
            size_bytes=int(self.size_bytes[row]),
        )

    def where(self, mask: NDArray[np.bool_]) -> "Ops":
        return Ops(self, np.flatnonzero(mask))


def _most_before(times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Per place: the largest of those before it; 0 for the first."""
    return np.concatenate([[0], np.maximum.accumulate(times[:-1])]) if len(times) else times


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Joins the parts as plain bytes: numpy compares the fields of records one by one."""
    return np.concatenate([part.view(f"V{part.itemsize}") for part in parts]).view(parts[0].dtype)


def _used_fields(records: NDArray[Any]) -> set[str]:
    """Fields that are not 0 in all records. Columns begin as zeros, which take no memory until they are written."""
    words = np.bitwise_or.reduce(np.ascontiguousarray(records).view(np.uint64).reshape(-1, _WORDS), axis=0)
    used = words.view(rings.DTYPE)[0]
    return {name for name in rings.DTYPE.names or () if used[name]}


_WORDS = rings.DTYPE.itemsize // 8


def on_one_clock(times: NDArray[np.int64], clock: Readings) -> NDArray[np.int64]:
    corrected = times.copy()
    put_on_one_clock(corrected, clock)
    return corrected


def put_on_one_clock(times: NDArray[np.int64], clock: Readings) -> None:
    """Correct the times in their place. Between two readings the drift is even; before the first and after the last
    there is none."""
    unknown = np.flatnonzero(times <= 0)
    its = np.array([at + offset for at, offset, _ in clock], dtype=np.float64)
    base = clock[0][1]  # offsets are large and differ by little: floats are precise enough for the difference
    ahead = np.interp(times, its, [float(offset - base) for _, offset, _ in clock])
    times -= base
    times -= ahead.astype(np.int64)
    times[unknown] = 0


_NUMBERS_CHANNELS = 3  # the first version of a ring whose sends and receives are numbered by channel


def _number_channels(records: NDArray[np.void], seq: NDArray[np.uint32]) -> None:
    """Number the sends and receives of an older ring by channel. Once their beginning is overwritten, that is not
    possible: their number is 0 then."""
    rows = np.flatnonzero(np.isin(records["op"], ring_format.POINT_TO_POINT))
    if len(records) and records["number"][0] > 1:
        seq[rows] = 0
        return
    channels = records[rows][["op", "group", "peer", "tag"]]
    counts: Counter[tuple[int, ...]] = Counter()
    for row, channel in zip(rows.tolist(), channels.tolist(), strict=True):
        counts[channel] += 1
        seq[row] = counts[channel]


class Ops(Sequence[Op]):
    """Some ops of a table, made on demand. Rows that follow each other can be given as a range, which takes no
    memory."""

    def __init__(self, table: Table, rows: NDArray[np.signedinteger] | range) -> None:
        self.table, self._rows = table, rows

    @property
    def rows(self) -> NDArray[np.signedinteger]:
        rows = self._rows
        return np.arange(rows.start, rows.stop, rows.step, dtype=np.int32) if isinstance(rows, range) else rows

    @overload
    def __getitem__(self, place: int) -> Op: ...

    @overload
    def __getitem__(self, place: slice) -> "Ops": ...

    def __getitem__(self, place: int | slice) -> "Op | Ops":
        if isinstance(place, slice):
            return Ops(self.table, self._rows[place])
        return self.table.get(self._rows[place])

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Op]:
        return (self.table.get(row) for row in self._rows)

    def first(self) -> Op:
        """The one that was entered first."""
        return self.table.get(self.rows[np.argmin(self.table.entered_ns[self.rows])])

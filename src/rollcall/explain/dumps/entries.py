"""One dump → the records of a ring. What other dumps must add (members of a group, when a call ended) comes later."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.dumps import files
from rollcall.explain.dumps.names import BATCH, BATCH_OF, DTYPES, UNKNOWN, OpName
from rollcall.explain.loading import rings
from rollcall.record import ring_format
from rollcall.record.sites import is_users_file

_MOST_FRAMES = 8  # of the program, as many as the recorder keeps
# Frames of Python and torch, on whatever machine the dump was made.
_NOT_USERS = re.compile(
    r"/lib/python3|/torch/(distributed|nn|autograd|utils|_|optim)|\.(cpp|cc|h|hpp|cu|so)\b|^\?\?|^<"
)


@dataclass
class Dump:
    """One dump. `records` are those of a ring, but for groups, which are numbers of `groups`, and for peers, which are
    ranks of the group."""

    path: Path
    rank: int
    backend: str = ""
    version: str = ""
    world_size: int = 0  # 0: not known
    groups: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)  # name and ranks; no ranks: not known
    sites: list[bytes] = field(default_factory=list)
    signatures: list[bytes] = field(default_factory=list)
    records: NDArray[Any] = field(default_factory=lambda: np.zeros(0, dtype=rings.DTYPE))
    is_done: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    has_begun: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))  # on the device
    is_p2p: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    timeout_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    took_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # on the device, or 0
    batch: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, dtype=np.intp))  # ops that begin together
    was_given_up: bool = False  # torch says that an op has timed out
    unknown: Counter[str] = field(default_factory=Counter)  # ops whose name is not known
    overwritten: int = 0  # older ops that are not in it
    has_only_open: bool = False  # it was asked for the ops that are not over: the others are not in it
    written_ns: int = 0  # by the time of the file

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Drop all other records."""
        if not kept.all():
            self.records, self.timeout_ns = self.records[kept], self.timeout_ns[kept]
            self.took_ns, self.batch = self.took_ns[kept], self.batch[kept]
            self.is_done, self.is_p2p = self.is_done[kept], self.is_p2p[kept]
            self.has_begun = self.has_begun[kept]

    @property
    def last_ns(self) -> int:
        """Its last known moment."""
        times = (self.records["entered_ns"], self.records["completed_ns"])
        return max(int(each.max(initial=0)) for each in times)

    @property
    def has_times_of_ends(self) -> bool:
        return bool(self.records["completed_ns"].any()) or not self.is_done.any()


def read(path: Path) -> Dump:
    """ValueError with the reason if it is no whole dump."""
    content = files.read(path)
    try:
        members, world_size = _members(content.get("pg_config") or {}), _world_size(content)
    except _MISFITS as error:
        raise _misfit(error) from error
    rank = files.rank_in(path.name, world_size or files.MOST_RANKS)
    if rank is None:
        rank = _rank_by_groups(members)
    if rank is None:
        raise ValueError("its name has no number, so it is not known which rank wrote it")
    version, written_ns = str(content.get("version", "")), path.stat().st_mtime_ns
    blank = Dump(path, rank, version=version, world_size=world_size, written_ns=written_ns)
    try:
        entries = content.get("entries") or []
        blank.has_only_open = _has_only_open(entries, content.get("pg_status"))
        return _Entries(members).fill(blank, entries)
    except _MISFITS as error:
        raise _misfit(error) from error


_MISFITS = (TypeError, LookupError, ValueError, AttributeError, OverflowError)


def _misfit(error: Exception) -> ValueError:
    return ValueError(f"its content is not that of a dump ({type(error).__name__}: {error})")


def _world_size(content: dict[str, Any]) -> int:
    """By the group that torch makes first; 0 if its ranks are not told."""
    groups = (content.get("pg_config") or {}).values()
    worlds = [_members({"": group}).get("", ()) for group in groups if group.get("desc") == "default_pg"]
    return max(map(len, worlds), default=0)


def _members(pg_config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """By name of the group: its ranks. Gloo of torch before 2.15 leaves them out."""
    found = {}
    for name, group in pg_config.items():
        ranks = _ranks_in(str(group.get("ranks", "")))
        if ranks and ranks[-1] >= files.MOST_RANKS:
            raise ValueError(f"it has a rank {ranks[-1]}")
        if ranks:
            found[str(name)] = ranks
    return found


@cache
def _ranks_in(text: str) -> tuple[int, ...]:
    """All dumps of a job have the same groups."""
    return tuple(sorted(map(int, re.findall(r"\d+", text))))


def _rank_by_groups(members: dict[str, tuple[int, ...]]) -> int | None:
    """A rank is in all its groups: if they have one rank in common, it is that."""
    common = set.intersection(*map(set, members.values())) if members else set()
    return common.pop() if len(common) == 1 else None


def _has_only_open(entries: list[dict[str, Any]], status: Any) -> bool:
    """Whether torch was asked for `onlyActive`. Else records follow each other, and as many are left as the recorder
    keeps; and the oldest that is left is hardly ever the one behind the last that is over."""
    if not entries or any(entry.get("state") == "completed" for entry in entries):
        return False
    first, last = entries[0], int(entries[-1]["record_id"])
    before = int(first["record_id"])
    is_next = not first.get("is_p2p") and _last_completed(status, first.get("pg_id")) + 1 == first["collective_seq_id"]
    return last - before >= len(entries) or (before > 0 and (is_next or len(entries) < _LEAST_KEPT))


def _last_completed(status: Any, group: Any) -> int:
    """The number of the last collective of a group that is over; -1: none, or that is not told. JSON has strings."""
    told = status.get(str(group)) if isinstance(status, dict) else None
    number = str(told.get("last_completed_collective", "")) if isinstance(told, dict) else ""
    return int(number) if number.isdecimal() else -1


_LEAST_KEPT = 16  # ops: no recorder is so small


_MOST_MS = 1e9  # eleven days: a larger number is none of a duration


class _Entries:
    """The entries of a dump, column by column: a dump has thousands, a folder a thousand dumps. What many entries have
    in common is turned into a number once."""

    def __init__(self, members: dict[str, tuple[int, ...]]) -> None:
        self._members = members
        self._groups: dict[tuple[str, str], int] = {}
        self._sites: dict[bytes, int] = {}
        self._signatures: dict[bytes, tuple[int, int]] = {}  # number and size in bytes
        self._batches: dict[tuple[int, ...], int] = {}  # from the signatures of its ops to its own

    def fill(self, dump: Dump, entries: list[dict[str, Any]]) -> Dump:
        known = {name: OpName.parse(name) for name in {entry["profiling_name"] for entry in entries}}
        dump.unknown = Counter(e["profiling_name"] for e in entries if known[e["profiling_name"]].op == UNKNOWN)
        kept = entries
        if dump.unknown:
            kept = [entry for entry in entries if entry["profiling_name"] not in dump.unknown]
        names = [known[entry["profiling_name"]] for entry in kept]
        dump.backend = names[0].backend if names else ""
        dump.overwritten = int(entries[0]["record_id"]) if entries else 0
        columns = _Columns.of(kept)
        self._fill_records(dump, columns, names)
        self._fill_states(dump, columns, names)
        dump.timeout_ns = _column(columns.timeout_ms) * 1_000_000
        took_ms = np.nan_to_num(np.array([each or 0 for each in columns.duration_ms], dtype=float), posinf=0, neginf=0)
        dump.took_ns = np.round(np.clip(took_ms, 0, _MOST_MS) * 1e6).astype(int)
        self._end_batches(dump, [name.text if name.op == BATCH else "" for name in names])
        dump.groups = [(_group_name(*named), self._members.get(named[0], ())) for named in self._groups]
        dump.sites, dump.signatures = list(self._sites), list(self._signatures)
        return dump

    def _fill_records(self, dump: Dump, columns: "_Columns", names: list["OpName"]) -> None:
        records = dump.records = np.zeros(len(names), dtype=rings.DTYPE)
        is_batch, is_p2p = _flags([name.op == BATCH for name in names]), _flags([name.is_p2p for name in names])
        dump.is_p2p = is_p2p | (is_batch & _flags(columns.is_p2p))
        signatures = np.array(self._numbers_of_signatures(columns, names), dtype=np.int64).reshape(-1, 2)
        records["number"] = _column(columns.record_id) + 1
        records["entered_ns"] = _column(columns.time_created_ns)
        records["seq"] = np.where(dump.is_p2p, _column(columns.p2p_seq_id), _column(columns.collective_seq_id))
        records["op"], records["peer"] = [name.number for name in names], [name.peer for name in names]
        groups = list(map(tuple, columns.process_group))
        numbers = {named: self._group(named) for named in dict.fromkeys(groups)}
        records["group"] = [numbers[named] for named in groups]
        records["site"] = self._numbers_of_sites(columns.frames)
        records["thread"] = _threads(list(zip(columns.thread_name, columns.thread_id, strict=True)))
        records["signature"], records["size_bytes"] = signatures.T

    @staticmethod
    def _fill_states(dump: Dump, columns: "_Columns", names: list["OpName"]) -> None:
        """Gloo's entries never become "completed": an op that has ended is "retired" there. One that nccl has retired
        without completing it has timed out."""
        completed_ns = _column(columns.time_discovered_completed_ns)
        is_done = (completed_ns > 0) | _flags([state == "completed" for state in columns.state])
        is_retired = _flags(columns.retired)
        is_nccl = _flags([name.backend == "nccl" for name in names])
        dump.records["completed_ns"] = completed_ns
        dump.was_given_up = bool((is_nccl & is_retired & ~is_done).any())
        dump.is_done = is_done | (is_retired & ~is_nccl)
        dump.has_begun = dump.is_done | _flags([state == "started" for state in columns.state])

    def _end_batches(self, dump: Dump, ends: list[str]) -> None:
        """The ops of a batch have no state of their own: the entry behind them has it. Several collectives of a batch
        are one call, with the tensors of all. `ends`: of entries that end a batch, their name."""
        records = dump.records
        keep = np.ones(len(records), dtype=np.bool_)
        dump.batch = np.arange(len(records))
        # Of the collectives of one number, the first stands for all, also in a batch that has not ended yet.
        same = (records["group"][1:] == records["group"][:-1]) & (records["seq"][1:] == records["seq"][:-1])
        keep[1:] &= ~(same & ~dump.is_p2p[1:] & ~dump.is_p2p[:-1])
        dump.is_done |= self._is_of_batch_left_out(dump, ends)
        is_partial = np.flatnonzero(~keep[1:] & keep[:-1])  # until its end is found
        tensors = {int(place): 0 for place in is_partial}
        for place in (place for place, end in enumerate(ends) if end):
            keep[place] = False
            first = place
            while first and _is_member(dump, first - 1, place):
                first -= 1
            records["completed_ns"][first:place] = records["completed_ns"][place]
            dump.took_ns[first:place] = dump.took_ns[place]
            dump.is_done[first:place], dump.batch[first:place] = dump.is_done[place], first
            dump.has_begun[first:place] = dump.has_begun[place]
            if not dump.is_p2p[place] and first < place:
                op = BATCH_OF.get(ends[place])
                records["op"][first] = ring_format.OP[op] if op else records["op"][first]
                if first or not dump.overwritten:  # else its first ops may be lost
                    tensors[first] = self._joined(tuple(records["signature"][first:place].tolist()))
        records["signature"][list(tensors)] = list(tensors.values())
        dump.keep(keep)

    @staticmethod
    def _is_of_batch_left_out(dump: Dump, ends: list[str]) -> NDArray[np.bool_]:
        """Per row: an op of a batch that is over, in a dump of open ops alone. That has the ops of each batch, which
        have no state, but not the entries that end those which are over."""
        records = dump.records
        if not dump.has_only_open:
            return np.zeros(len(records), dtype=np.bool_)
        is_next = np.diff(records["number"].astype(np.int64)) == 1
        goes_on = is_next & (np.diff(records["group"].astype(np.int64)) == 0)
        goes_on &= np.diff(records["seq"].astype(np.int64)) == 0
        starts = np.flatnonzero(np.append(True, ~goes_on))
        counts = np.diff(starts, append=len(records))
        last = starts + counts - 1
        has_end = np.array([bool(ends[place]) for place in last])
        is_cut = np.append(~is_next, False)[last] | (last == len(records) - 1) & (counts > 1)
        return np.repeat(~has_end & is_cut & (dump.is_p2p[last] | (counts > 1)), counts)

    def _joined(self, numbers: tuple[int, ...]) -> int:
        """One signature of several: what it has of each tensor, one after the other."""
        if numbers not in self._batches:
            of_ops = [json.loads(list(self._signatures)[number - 1]) for number in numbers if number]
            told = {**of_ops[0], **{key: [x for each in of_ops for x in each[key]] for key in ("shapes", "dtypes")}}
            value = json.dumps(told).encode()
            self._batches[numbers] = self._signatures.setdefault(value, (len(self._signatures) + 1, 0))[0]
        return self._batches[numbers]

    def _group(self, named: tuple[Any, ...]) -> int:
        name, described = (str(part) for part in named[:2])
        return self._groups.setdefault((name, described), len(self._groups))

    def _numbers_of_sites(self, stacks: Iterable[Any]) -> list[int]:
        """Entries share their frames, so that their identities tell whether two stacks are the same."""
        by_frames: dict[tuple[int, ...], int] = {}
        found = []
        for stack in stacks:
            frames = stack or ()
            key = tuple(map(id, frames))
            number = by_frames.get(key)
            if number is None:
                number = by_frames[key] = self._site(frames)
            found.append(number)
        return found

    def _site(self, frames: Iterable[dict[str, Any]]) -> int:
        users = [
            [str(frame["filename"]), int(frame["line"]), str(frame["name"])]
            for frame in frames
            if _is_program(str(frame["filename"]))
        ]
        return self._sites.setdefault(json.dumps(users[:_MOST_FRAMES]).encode(), len(self._sites) + 1) if users else 0

    def _numbers_of_signatures(self, columns: "_Columns", names: list["OpName"]) -> list[tuple[int, int]]:
        """What all ranks have alike: the tensors that go in, but of a receive those that come out. Of a gather or
        scatter, those of which each rank has one: only the root has a list, for which nccl has an undefined tensor on
        the others; and it takes those that a scatter gives out for its inputs."""
        known: dict[Any, tuple[int, int]] = {}
        found = []
        sizes = zip(columns.input_sizes, columns.output_sizes, strict=True)
        types = zip(columns.input_dtypes, columns.output_dtypes, strict=True)
        for name, two_sizes, two_types in zip(names, sizes, types, strict=True):
            side = _side(name, two_sizes, two_types)
            shapes, dtypes = two_sizes[side] or [], two_types[side] or []
            key = (name.backend, *map(tuple, shapes), *dtypes)
            number = known.get(key)
            if number is None:
                number = known[key] = self._signature(name.backend, shapes, dtypes)
            found.append(number)
        return found

    def _signature(self, backend: str, shapes: list[list[int]], dtypes: list[str]) -> tuple[int, int]:
        known = [DTYPES.get(str(dtype), (str(dtype).lower(), 1)) for dtype in dtypes]
        size_bytes = sum(math.prod(shape) * size for shape, (_, size) in zip(shapes, known, strict=False))
        device = "cpu" if backend == "gloo" else "cuda"
        told = {"shapes": shapes, "dtypes": [name for name, _ in known], "device": device, "splits": []}
        value = json.dumps(told).encode()
        return self._signatures.setdefault(value, (len(self._signatures) + 1, size_bytes))


@dataclass(frozen=True)
class _Columns:
    """What entries have under each name, entry by entry."""

    record_id: Sequence[int]
    time_created_ns: Sequence[int]
    p2p_seq_id: Sequence[int]
    collective_seq_id: Sequence[int]
    process_group: Sequence[Any]
    # Not every version and backend writes the following ones.
    time_discovered_completed_ns: Sequence[int | None] = ()
    state: Sequence[str | None] = ()
    retired: Sequence[bool | None] = ()
    timeout_ms: Sequence[int | None] = ()
    duration_ms: Sequence[float | None] = ()
    is_p2p: Sequence[bool | None] = ()
    thread_name: Sequence[str | None] = ()
    thread_id: Sequence[Any] = ()
    frames: Sequence[Any] = ()
    input_sizes: Sequence[Any] = ()
    input_dtypes: Sequence[Any] = ()
    output_sizes: Sequence[Any] = ()
    output_dtypes: Sequence[Any] = ()

    @classmethod
    def of(cls, entries: list[dict[str, Any]]) -> "_Columns":
        """KeyError if an entry lacks what all versions write."""
        names = [each.name for each in fields(cls)]
        optional = [each.name for each in fields(cls) if each.default == ()]
        absent = [name for name in optional if not any(name in entry for entry in entries)]
        present = [name for name in names if name not in absent]
        try:
            found = list(zip(*map(itemgetter(*present), entries), strict=True))
        except KeyError:  # some entries lack what others have
            full = [{**dict.fromkeys(optional), **entry} for entry in entries]
            found = list(zip(*map(itemgetter(*present), full), strict=True))
        columns: dict[str, Any] = dict.fromkeys(names, [None] * len(entries))
        return cls(**(columns | dict(zip(present, found, strict=False))))


def _column(values: Sequence[int | None]) -> NDArray[np.int64]:
    return np.array([each or 0 for each in values], dtype=np.int64)


def _flags(values: Sequence[bool | None]) -> NDArray[np.bool_]:
    return np.array(list(map(bool, values)), dtype=np.bool_)


def _side(name: OpName, sizes: tuple[Any, Any], types: tuple[Any, Any]) -> int:
    """0: the tensors that go in; 1: those that come out."""
    first = int(name.op == "recv")
    if name.op in ("gather", "scatter"):
        first = min((0, 1), key=lambda side: _length(sizes[side] or [], types[side]))
    return first if sizes[first] else 1 - first


def _length(shapes: list[list[int]], dtypes: Any) -> tuple[int, int]:
    """Larger for a list than for one of its tensors: it has more tensors, or gloo has put them into a single one."""
    return len(shapes) + 2 * (dtypes == ["Undefined"]), sum(map(math.prod, shapes))


@cache
def _is_program(file: str) -> bool:
    return is_users_file(file) and not _NOT_USERS.search(file)


def _threads(threads: list[tuple[str | None, Any]]) -> list[int]:
    """The first is the main thread; autograd's threads work while that waits for them."""
    numbers: dict[Any, int] = {}
    known = {
        (name, thread): 0 if str(name or "").startswith("pt_autograd") else numbers.setdefault(thread, len(numbers))
        for name, thread in dict.fromkeys(threads)
    }
    return [known[thread] for thread in threads]


def _is_member(dump: Dump, place: int, end: int) -> bool:
    mine, its = dump.records[place], dump.records[end]
    is_op = mine["op"] != 0  # not the end of another batch
    return bool(
        is_op and mine["group"] == its["group"] and mine["seq"] == its["seq"] and dump.is_p2p[place] == dump.is_p2p[end]
    )


def _group_name(name: str, described: str) -> str:
    return name if described in ("", "undefined", "default_pg") else f"{name} ({described})"

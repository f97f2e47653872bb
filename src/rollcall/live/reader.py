"""Reads rings while they are written: only what is new, and without any cost for the ranks."""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.loading import rings
from rollcall.explain.loading.cut import ClockReading, as_of
from rollcall.explain.loading.load import Rank, Run, clocks
from rollcall.explain.loading.table import UNKNOWN_GROUP, Group, Ops, Readings, Table, parse_group
from rollcall.linux import open_files
from rollcall.record import ring_format
from rollcall.runs import WATCHED, facts_of_attempt, is_over, read_facts, recorded_attempts, rings_of

_MOST_RINGS = 1 << 20  # the ring of every rank is open: the usual limit is 1024 files
_LOOK_BACK = 64  # records that may have been open when they were read last
_MTIME_STEP_NS = 2_000_000_000  # file systems may count modification times in steps of this


def _lookup(ops: Iterable[int]) -> NDArray[np.bool_]:
    """By the number of an op: whether it is one of these."""
    table = np.zeros(len(ring_format.OPS), dtype=np.bool_)
    table[list(ops)] = True
    return table


IS_EVENT, _IS_PAIR = _lookup(ring_format.EVENTS), _lookup(ring_format.POINT_TO_POINT)
_IS_END = _lookup([ring_format.OP["exception"], ring_format.OP["exit"]])


@dataclass
class LiveRing:
    """The ring of one rank, read again and again."""

    path: Path
    fd: int
    header: rings.Header
    seen: int = 0  # records
    names_end: int = -1
    names: list[tuple[str, int, bytes]] = field(default_factory=list)
    groups: dict[int, Group] = field(default_factory=dict)
    sites: dict[int, str] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)  # by group: its newest collective
    has_ended: bool = False
    done_ns: int = 0  # when its last completed op ended
    has_stopped: bool = False  # recording has, and the rank continues
    # By the number of an op: how many were read, and their bytes.
    ops: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(ring_format.OPS), dtype=np.int64))
    sizes_bytes: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(ring_format.OPS)))

    @classmethod
    def open(cls, path: Path) -> "LiveRing | None":
        """None if it is not written yet, or no ring."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return cls(path, fd, rings.read_header(os.pread(fd, ring_format.HEADER_BYTES, 0)))
        except (OSError, ValueError):
            os.close(fd)
            return None

    def close(self) -> None:
        os.close(self.fd)

    def count(self) -> int:
        """How many records there are by now. Reads new names, too."""
        changing = os.pread(self.fd, 16, ring_format.COUNT_AT)
        if len(changing) < 16:
            return self.seen
        self.has_stopped = os.pread(self.fd, 1, ring_format.STOPPED_AT) > b"\0"
        count, names_end = (ring_format.NUMBER.unpack_from(changing, at)[0] for at in (0, 8))
        if names_end != self.names_end and names_end <= self.header.names_bytes:
            self._read_names(names_end)
        return int(count)

    def tail(self, count: int, most: int) -> NDArray[np.void]:
        """The newest records, oldest first."""
        places = ring_format.stretches(count, most, self.header.capacity, self.header.names_bytes)
        raw = b"".join(os.pread(self.fd, length, at) for at, length in places)
        size = ring_format.RECORD.size
        records = np.frombuffer(raw[: len(raw) // size * size], dtype=rings.DTYPE)
        # The rank may overwrite records while they are read.
        good = (records["number"] > max(count - self.header.capacity, 0)) & (records["op"] < len(ring_format.OPS))
        return records[good]

    def read_new(self, at_ns: int) -> NDArray[np.void]:
        """The records since the last call, and a few earlier ones that may have completed meanwhile, as they were at
        this moment: rings are read one after the other."""
        count = self.count()
        records = as_of(self.tail(count, count - self.seen + _LOOK_BACK), at_ns)
        self._note(records)
        self.seen = max(self.seen, int(records["number"].max(initial=0)))
        return records

    def _note(self, records: NDArray[np.void]) -> None:
        fresh = records[records["number"] > self.seen]
        if not len(fresh):
            return
        op = fresh["op"]
        self.ops += np.bincount(op, minlength=len(self.ops))
        self.sizes_bytes += np.bincount(op, fresh["size_bytes"].astype(np.float64), len(self.ops))
        self.has_ended = self.has_ended or bool(_IS_END[op].any())
        collectives = fresh[~IS_EVENT[op] & ~_IS_PAIR[op]]
        for number in set(collectives["group"].tolist()):
            name = self.groups.get(number, UNKNOWN_GROUP).name
            newest = int(collectives["seq"][collectives["group"] == number].max())
            self.reached[name] = max(self.reached.get(name, 0), newest)

    def _read_names(self, end: int) -> None:
        """The names after the last one that was read: names are only ever appended."""
        begin = max(self.names_end, 0)
        added = rings.read_names(os.pread(self.fd, end - begin, ring_format.NAMES_AT + begin))
        for kind, number, value in added:
            with contextlib.suppress(TypeError, KeyError, ValueError, IndexError):
                if kind == "group":
                    self.groups[number] = _group(value)
                elif kind == "site":
                    file, line, _ = rings.parse(value)[0]
                    self.sites[number] = f"{os.path.basename(file)}:{line}"
        self.names += added
        self.names_end = end


@lru_cache(maxsize=1024)
def _group(value: bytes) -> Group:
    """All ranks of a group name it alike: for ten thousand of them, one list of members is enough."""
    return parse_group(rings.parse(value))


class LiveRun:
    """The newest attempt of a running job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempt = -1
        self.rings: dict[int, LiveRing] = {}
        self.facts: dict[str, Any] = {}
        self._known_clocks: list[Readings] = []
        self._marks: dict[Path, tuple[int, int, int]] = {}
        self._unopened = 0
        open_files.allow(_MOST_RINGS)

    def refresh(self) -> None:
        """Look for new attempts and ranks, if files have changed."""
        if self._has_changed(self.folder / "run.json"):
            self.facts = read_facts(self.folder) or self.facts
            self._known_clocks = clocks(self.facts)
        if self._has_changed(self.folder / "rings"):
            numbers = recorded_attempts(self.folder)
            if numbers and numbers[-1] != self.attempt:
                self.close()
                self.attempt = numbers[-1]
        place = rings_of(self.folder, self.attempt)
        if self._unopened or self._has_changed(place):
            known = {ring.path.name for ring in self.rings.values()}
            self._unopened = 0
            for path in place.glob("rank-*.ring"):
                if path.name in known:
                    continue
                if (ring := LiveRing.open(path)) is not None:
                    self.rings[ring.header.rank] = ring
                else:
                    self._unopened += 1  # its header is not written yet, and the folder does not change when it is

    def note_watching(self) -> None:
        """Tell the launcher that somebody watches: it then asks hosts without a shared disk for their rings."""
        with contextlib.suppress(OSError):  # another user's run may be read-only
            (self.folder / WATCHED).touch()

    def _has_changed(self, path: Path) -> bool:
        try:
            stat = os.stat(path)
        except OSError:
            return False
        mark = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        before, self._marks[path] = self._marks.get(path), mark
        # A file that was written just now may change again within the same step of its modification time.
        return mark != before or time.time_ns() - stat.st_mtime_ns < _MTIME_STEP_NS

    def close(self) -> None:
        for ring in self.rings.values():
            ring.close()
        self.rings.clear()

    @property
    def _is_launchers_host(self) -> bool:
        return bool(self.facts.get("host") == os.uname().nodename)

    @property
    def is_over(self) -> bool:
        """It has an outcome, or its launcher is gone."""
        return is_over(self.facts)

    @property
    def attempt_facts(self) -> dict[str, Any]:
        """What run.json says of this attempt."""
        return facts_of_attempt(self.facts, self.attempt)

    @property
    def world_size(self) -> int:
        sizes = [ring.header.world_size for ring in self.rings.values()]
        return int(self.attempt_facts.get("world_size") or max(sizes, default=0))

    def clock(self, rank: int) -> Readings:
        """By how much the clock of a rank's host was ahead of the launcher's; empty if they were not compared."""
        return self._known_clocks[rank] if rank < len(self._known_clocks) else []

    def offset_ns(self, rank: int) -> int:
        readings = self.clock(rank)
        return readings[-1][1] if readings else 0

    def now_ns(self, ring: LiveRing) -> int:
        """Now by the clock of a ring."""
        return self.moment().by_clock_of(ring.header, self.clock(ring.header.rank))

    def moment(self) -> ClockReading:
        return ClockReading.now(self._is_launchers_host)

    @property
    def is_one_clock(self) -> bool:
        hosts = {ring.header.host for ring in self.rings.values()}
        return len(hosts) < 2 or self.is_here or all(map(self.clock, self.rings))

    @property
    def is_here(self) -> bool:
        """Whether all ranks are on this machine: as planned; where another launcher started them, by its name."""
        if plan := self.facts.get("plan"):
            return (plan.get("transport") or {}).get("kind", "local") in ("local", "virtual")
        return all(ring.header.host == os.uname().nodename for ring in self.rings.values())

    def common_now_ns(self) -> int:
        """Now by the common clock of all ranks; 0 if none has begun."""
        ring = next(iter(self.rings.values()), None)
        return self.now_ns(ring) - self.offset_ns(ring.header.rank) if ring else 0

    def window(self, since_ns: int, most: int) -> Run:
        """The records since a moment as a Run; at most `most` of all ranks together."""
        each = max(most // max(len(self.rings), 1), 16)
        cut = [(ring, self._recent(ring, since_ns, each)) for _, ring in sorted(self.rings.items())]
        table = Table(sum(len(records) for _, records in cut))
        for ring, records in cut:
            header = replace(ring.header, count=len(records))
            table.add(rings.ReadRing(header, records, ring.names, []), self.clock(ring.header.rank))
        table.close()
        ranks = {}
        for ring, _ in cut:
            number = ring.header.rank
            rows = np.arange(*table.spans[number])
            ranks[number] = Rank(number, Ops(table, rows), Ops(table, rows[:0]), ring.header.host, ring.header.pid)
        return Run(
            self.folder.name,
            self.attempt,
            "running",
            ranks,
            self.world_size,
            table,
            is_one_clock=self.is_one_clock,
        )

    def _recent(self, ring: LiveRing, since_ns: int, most: int) -> NDArray[np.void]:
        records = ring.tail(ring.count(), most)
        own_ns = since_ns + self.offset_ns(ring.header.rank)
        is_recent = (records["completed_ns"] == 0) | (records["completed_ns"] >= max(own_ns, 0))
        return np.asarray(records[is_recent])

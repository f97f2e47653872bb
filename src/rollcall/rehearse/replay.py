"""Replays the recorded ops of all ranks with waiting: ranks that would hang, hang.

Rehearsed ranks ran alone, so each op returned at once. Here the ops of all ranks are replayed together, each rank's in
the order in which it made them. A collective completes when all its ranks have called it, a message when both ends
have. Until then the rank waits, and its later records are dropped. The rings are rewritten in this way, with a clock of
their own: every event takes one microsecond, so times show only the order.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.errors import RollcallError
from rollcall.explain.loading import rings
from rollcall.record import ring_format
from rollcall.runs import rank_rings

_TICK_NS = 1000
_SEND, _RECV = ring_format.POINT_TO_POINT
_ENTER, _ISSUE, _WAIT, _COMPLETE = range(4)
_FIELDS = ("entered_ns", "issued_ns", "waited_ns", "completed_ns")
# One of these does not complete if its ranks have different numbers of bytes. In other ops, parts may have different
# sizes on different ranks.
_EQUAL_SIZES = {ring_format.OP[name] for name in ("all_reduce", "broadcast", "reduce")}


@dataclass
class Meeting:
    """A collective, or a message: which ranks have called it, and when it completed (0: it has not)."""

    wanted: int
    rows: list[tuple["Track", int]] = field(default_factory=list)
    over: int = 0
    waiting: list["Track"] = field(default_factory=list)

    def is_complete(self) -> bool:
        return len(self.rows) >= self.wanted and self._do_fit()

    def _do_fit(self) -> bool:
        """Whether its ranks make the same call. Ranks with another dtype or reduce op get wrong results, and continue:
        explain reports that."""
        records = [track.records[row] for track, row in self.rows]
        ops = {int(each["op"]) for each in records}
        if ops <= {_SEND, _RECV}:
            return True
        roots = {int(each["peer"]) for each in records}
        sizes = {int(each["size_bytes"]) for each in records}
        return len(ops) == 1 and len(roots) == 1 and not (ops <= _EQUAL_SIZES and len(sizes) > 1)


class Track:
    """The events of one thread of a rank, in order."""

    def __init__(self, records: NDArray[Any], rows: NDArray[np.intp], base_ns: int) -> None:
        self.records = records
        self.thread = int(records["thread"][rows[0]])
        self.events = list(_events(records, rows))
        self.place = 0
        self.now_ns = base_ns
        self.reached: dict[tuple[int, int], int] = {}  # by row and kind of event: when

    def tick(self, until_ns: int = 0) -> int:
        self.now_ns = max(self.now_ns + _TICK_NS, until_ns)
        return self.now_ns


def _events(records: NDArray[Any], rows: NDArray[np.intp]) -> Iterator[tuple[int, int]]:
    """Row and kind. The completion of an op is none: it follows from the other ranks."""
    found: list[tuple[int, int, int]] = []
    is_event = np.isin(records["op"], ring_format.EVENTS)
    for kind, name in enumerate(_FIELDS):
        times = records[name]
        for row in rows:
            if times[row] and (kind != _COMPLETE or is_event[row]):
                found.append((int(times[row]), int(row), kind))
    found.sort(key=lambda event: (event[0], event[1], event[2]))
    return ((row, kind) for _, row, kind in found)


@dataclass(frozen=True)
class RankRing:
    """A ring in memory, with the groups that its records name by number."""

    path: Path
    ring: rings.ReadRing
    records: NDArray[Any]
    groups: dict[int, tuple[str, tuple[int, ...]]]
    on_device: frozenset[int]  # signatures


def read(path: Path) -> RankRing:
    ring = rings.read(path)
    if ring.header.overwritten:
        kept = f"{ring.header.kept:,} of {ring.header.count:,}"
        raise RollcallError(
            f"rank {ring.header.rank} has room for {kept} ops: rehearse fewer --steps, or set"
            f" {ring_format.MB_VARIABLE} to more megabytes"
        )
    named = [(kind, number, rings.parse(value)) for kind, number, value in ring.names]
    groups = {n: (str(value["name"]), _ranks(value["ranks"])) for kind, n, value in named if kind == "group"}
    on_device = frozenset(n for kind, n, value in named if kind == "signature" and value.get("device") == "cuda")
    records = ring.records.copy()
    _number_messages(records, on_device)
    return RankRing(path, ring, records, groups, on_device)


def _number_messages(records: NDArray[Any], on_device: frozenset[int]) -> None:
    """nccl has no tags, and matches messages in their order; the recorder has counted those of each tag by itself."""
    counts: Counter[Any] = Counter()
    for record in (records[row] for row in np.flatnonzero(np.isin(records["op"], (_SEND, _RECV)))):  # views
        if int(record["signature"]) in on_device and record["seq"]:
            channel = int(record["group"]), int(record["op"]), int(record["peer"])
            counts[channel] += 1
            record["seq"] = counts[channel]


_CALL = ("op", "flags", "group", "site", "signature", "peer", "tag", "thread", "reduce", "size_bytes")


def digest(path: Path) -> bytes:
    """The same for two passes of a rank in which it made the same calls."""
    records = rings.read(path).records
    return hashlib.sha1(b"".join(records[name].tobytes() for name in _CALL)).digest()


def _ranks(spans: list[Any]) -> tuple[int, ...]:
    return tuple(rank for span in spans for rank in ([span] if isinstance(span, int) else range(span[0], span[1] + 1)))


def of_folder(folder: Path, cut: Iterable[int]) -> "Replay":
    """Makes the replay of all ranks that were recorded in the folder of a run."""
    return Replay(map(read, rank_rings(folder, 0)), cut)


class Replay:
    """`cut`: ranks that were stopped after --steps. Their next ops are not known, so no rank waits for ops that they
    have not recorded, nor for ranks that were not rehearsed."""

    def __init__(self, found: Iterable[RankRing], cut: Iterable[int] = ()) -> None:
        self._rings = {each.ring.header.rank: each for each in found}
        self._cut = frozenset(cut)
        self._meetings: dict[Any, Meeting] = {}
        self._last_seqs = {rank: self._seqs(rank) for rank in self._cut}
        self._messages = {rank: self._message_keys(rank) for rank in self._cut}
        base_ns = min(
            (int(each.records["entered_ns"][0]) for each in self._rings.values() if len(each.records)), default=0
        )
        self._tracks = {rank: list(_tracks(each.records, base_ns)) for rank, each in self._rings.items()}
        self._rank_of = {id(track): rank for rank, tracks in self._tracks.items() for track in tracks}

    def run(self) -> list[int]:
        """The ranks that hang."""
        ready = deque(track for tracks in self._tracks.values() for track in tracks)
        while ready:
            ready.extend(self._advance(ready.popleft()))
        return sorted(
            {self._rank_of[id(track)] for tracks in self._tracks.values() for track in tracks if _is_left(track)}
        )

    def is_over(self, rank: int, number: int) -> bool:
        """Whether the op with this number in the ring of a rank completes. Records that are no ops between ranks do."""
        row = number - 1
        for track in self._tracks.get(rank, ()):
            if row < len(track.records) and track.records["thread"][row] == track.thread and _meets(track.records[row]):
                meeting = self._meetings.get(self._key(track, row))
                return meeting is not None and meeting.over > 0 and (row, _ENTER) in track.reached
        return True

    def write(self) -> None:
        for rank, tracks in self._tracks.items():
            _write(self._rings[rank], _rewritten(self._rings[rank].records, tracks, rank in self._cut))

    def _advance(self, track: Track) -> list[Track]:
        """Advances a rank until it has to wait. Returns the tracks that need not wait any longer."""
        woken: list[Track] = []
        while track.place < len(track.events):
            row, kind = track.events[track.place]
            record = track.records[row]
            if (row, kind) not in track.reached:
                track.reached[row, kind] = track.tick()
                if kind == _ENTER and _meets(record):
                    woken += self._arrive(track, row)
            if _meets(record) and (kind == _WAIT or (kind == _ENTER and not record["flags"] & ring_format.ASYNC)):
                meeting = self._meetings[self._key(track, row)]
                if not meeting.over:
                    meeting.waiting.append(track)
                    return woken
                if record["completed_ns"]:
                    track.reached[row, _COMPLETE] = track.tick(meeting.over)
            track.place += 1
        return woken

    def _arrive(self, track: Track, row: int) -> list[Track]:
        key = self._key(track, row)
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = self._meetings[key] = Meeting(self._wanted(track, row))
        meeting.rows.append((track, row))
        if meeting.over or not meeting.is_complete():
            return []
        meeting.over = max(each.reached[its, _ENTER] for each, its in meeting.rows) + _TICK_NS
        woken, meeting.waiting = meeting.waiting, []
        return woken

    def _key(self, track: Track, row: int) -> Any:
        """The same on all ranks of a collective, and on both ends of a message."""
        return self._key_of(self._rank_of[id(track)], track.records[row])

    def _key_of(self, rank: int, record: Any) -> Any:
        group = self._rings[rank].groups.get(int(record["group"]), ("", ()))
        if record["op"] not in (_SEND, _RECV):
            return group, int(record["seq"])
        ends = (rank, int(record["peer"])) if record["op"] == _SEND else (int(record["peer"]), rank)
        tag = 0 if int(record["signature"]) in self._rings[rank].on_device else int(record["tag"])  # nccl has no tags
        return group, ends, tag, int(record["seq"])

    def _wanted(self, track: Track, row: int) -> int:
        """How many of its ranks were rehearsed, and can call it."""
        record, rank = track.records[row], self._rank_of[id(track)]
        if record["op"] in (_SEND, _RECV):
            peer = int(record["peer"])
            may_come = peer in self._rings and (peer not in self._cut or self._key(track, row) in self._messages[peer])
            return 2 if may_come else 1
        name, members = self._rings[rank].groups.get(int(record["group"]), ("", ()))
        return sum(self._may_come(each, name, members, int(record["seq"])) for each in members)

    def _may_come(self, rank: int, name: str, members: tuple[int, ...], seq: int) -> bool:
        if rank not in self._rings:
            return False
        return rank not in self._cut or self._last_seqs[rank].get((name, members), 0) >= seq

    def _message_keys(self, rank: int) -> set[Any]:
        """The messages of which a rank recorded its end."""
        records = self._rings[rank].records
        return {self._key_of(rank, each) for each in records if each["op"] in (_SEND, _RECV) and _meets(each)}

    def _seqs(self, rank: int) -> dict[Any, int]:
        """By group: the last collective that a rank recorded."""
        found: dict[Any, int] = {}
        ring = self._rings[rank]
        for record in ring.records:
            if _meets(record) and record["op"] not in (_SEND, _RECV):
                group = ring.groups.get(int(record["group"]), ("", ()))
                found[group] = max(found.get(group, 0), int(record["seq"]))
        return found


def _meets(record: Any) -> bool:
    """Whether it is an op between ranks. An op that failed has raised: it does not wait, and no rank waits for it."""
    return bool(record["group"]) and record["op"] not in ring_format.EVENTS and not record["flags"] & ring_format.FAILED


def _tracks(records: NDArray[Any], base_ns: int) -> Iterator[Track]:
    for thread in np.unique(records["thread"]):
        yield Track(records, np.flatnonzero(records["thread"] == thread), base_ns)


def _is_left(track: Track) -> bool:
    return track.place < len(track.events)


def _rewritten(records: NDArray[Any], tracks: list[Track], is_cut: bool) -> NDArray[Any]:
    """The records that were reached, with their times on the clock of the replay. A rank that was cut has no end."""
    fresh = records.copy()
    for name in _FIELDS:
        fresh[name] = 0
    for track in tracks:
        for (row, kind), at_ns in track.reached.items():
            fresh[_FIELDS[kind]][row] = at_ns
    kept = fresh["entered_ns"] > 0
    if is_cut:
        kept &= ~np.isin(fresh["op"], (ring_format.OP["exit"], ring_format.OP["exception"]))
    is_unwaited = (records["waited_ns"] > 0) & (fresh["waited_ns"] == 0)
    fresh["flags"][is_unwaited] &= np.uint16(0xFFFF ^ ring_format.WAITED)
    fresh = fresh[kept]
    fresh["number"] = np.arange(1, len(fresh) + 1)
    return fresh


def _write(found: RankRing, records: NDArray[Any]) -> None:
    header = found.ring.header
    with open(found.path, "r+b") as file:
        file.seek(ring_format.COUNT_AT)
        file.write(ring_format.NUMBER.pack(len(records)))
        file.seek(ring_format.NAMES_AT + header.names_bytes)
        file.write(records.tobytes())
        file.write(bytes(ring_format.RECORD.size * (header.count - len(records))))

"""What every rank does at this moment, and whom it waits for."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from rollcall.record import layout
from rollcall.report.live import IS_EVENT, LiveRing, LiveRun
from rollcall.report.usage import Usage

State = Literal["waiting", "communicating", "computing", "ended", "unseen"]
_MB = 1e6
_HALVES = set(layout.POINT_TO_POINT)


@dataclass(frozen=True)
class RankNow:
    rank: int
    host: str
    state: State
    op: str = ""
    site: str = ""
    since_s: float = 0.0  # how long it has been in this op, or in none
    waits_for: tuple[int, ...] = ()
    holds_up: int = 0  # ranks that wait for it
    ops_per_s: float = 0.0
    mb_per_s: float = 0.0
    cpu_percent: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class _Open:
    """The op that a rank sits in."""

    op: int
    group: str
    members: tuple[int, ...]
    seq: int
    peer: int

    @property
    def is_pair(self) -> bool:
        return self.op in layout.POINT_TO_POINT


class Observer:
    """Looks at a run from time to time; speeds are those since the last look."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._usage: dict[int, Usage] = {}  # by pid
        self._looked_ns: dict[int, int] = {}

    def look(self) -> list[RankNow]:
        """All ranks, those that hold up most others first."""
        self._run.refresh()
        if not self._run.is_over:
            self._run.attend()
        found: dict[int, RankNow] = {}
        opened: dict[int, _Open] = {}
        for rank, ring in self._run.rings.items():
            found[rank], open_op = self._look_at(ring)
            if open_op is not None:
                opened[rank] = open_op
        for rank, open_op in opened.items():
            missing = self._missing(rank, open_op, opened)
            state: State = "waiting" if missing else "communicating"
            found[rank] = replace(found[rank], state=state, waits_for=missing)
        held = Counter(rank for each in found.values() if each.state == "waiting" for rank in each.waits_for)
        for rank in range(self._run.world_size):
            if rank not in found:
                found[rank] = RankNow(rank, self._host_of(rank), "unseen")
        now = [replace(each, holds_up=held[each.rank]) for each in found.values()]
        return sorted(now, key=lambda each: (-each.holds_up, each.state == "ended", each.rank))

    def _host_of(self, rank: int) -> str:
        hosts = self._run.told.get("hosts") or {}
        return next((str(host) for host, ranks in hosts.items() if rank in ranks), "")

    def _look_at(self, ring: LiveRing) -> tuple[RankNow, _Open | None]:
        rank, now_ns, before = ring.header.rank, self._run.now_ns(ring), ring.seen
        records = ring.news()
        fresh = records[records["number"] > before]
        ops = fresh[~IS_EVENT[fresh["op"]]]
        passed_s = (now_ns - self._looked_ns.get(rank, now_ns)) / 1e9
        self._looked_ns[rank] = now_ns
        missed = (ring.seen - before) / max(len(fresh), 1)  # of a fast rank elsewhere not every record comes
        rate = missed / passed_s if passed_s > 0 else 0.0
        speeds = len(ops) * rate, float(ops["size_bytes"].sum()) / _MB * rate
        cpu, memory = self._resources(ring)
        seen = RankNow(rank, ring.header.host, "computing", "", "", 0.0, (), 0, *speeds, cpu, memory)
        if ring.has_ended or str(rank) in (self._run.told.get("exit_codes") or {}):
            return replace(seen, state="ended"), None
        is_op = ~IS_EVENT[records["op"]]
        is_in = ((records["flags"] & layout.ASYNC) == 0) | (records["waited_ns"] > 0)
        is_open = is_op & is_in & (records["completed_ns"] == 0) & ((records["flags"] & layout.FAILED) == 0)
        if not is_open.any():
            newest = int(records["completed_ns"].max()) if len(records) else 0
            return replace(seen, since_s=max(now_ns - newest, 0) / 1e9 if newest else 0.0), None
        record = records[is_open][-1]
        since_ns = int(record["waited_ns"] if record["flags"] & layout.ASYNC else record["entered_ns"])
        group, members = ring.groups.get(int(record["group"]), ("?", ()))
        told = replace(
            seen,
            op=layout.OPS[record["op"]],
            site=ring.sites.get(int(record["site"]), ""),
            since_s=max(now_ns - since_ns, 0) / 1e9,
        )
        return told, _Open(int(record["op"]), group, members, int(record["seq"]), int(record["peer"]))

    def _missing(self, rank: int, mine: _Open, opened: dict[int, _Open]) -> tuple[int, ...]:
        """Who has not come to this call yet. Of a send or receive: the other side, unless it is in the other half."""
        if mine.is_pair:
            other_half = opened.get(mine.peer)
            is_there = other_half is not None and other_half.peer == rank and {mine.op, other_half.op} == _HALVES
            return (mine.peer,) if mine.peer >= 0 and mine.peer != rank and not is_there else ()
        rings = self._run.rings
        return tuple(
            other
            for other in mine.members
            if other != rank and (other not in rings or rings[other].reached.get((mine.group, False), 0) < mine.seq)
        )

    def _resources(self, ring: LiveRing) -> tuple[float | None, int | None]:
        """CPU and memory, of ranks on this machine."""
        if not self._run.is_here:
            return None, None
        pid = ring.header.pid
        try:
            if pid not in self._usage:
                self._usage[pid] = Usage(pid)
            return self._usage[pid].now()
        except OSError:
            return None, None

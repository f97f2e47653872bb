"""What every rank does now, and whom it waits for."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import psutil
from numpy.typing import NDArray

from rollcall.explain.loading.table import UNKNOWN_GROUP, Group
from rollcall.explain.waits import blocked_since_ns
from rollcall.live.reader import IS_EVENT, LiveRing, LiveRun
from rollcall.record import ring_format

State = Literal["waiting", "communicating", "computing", "ended", "unseen"]
_MB = 1e6
_SEND_AND_RECV = set(ring_format.POINT_TO_POINT)


@dataclass(frozen=True)
class RankNow:
    rank: int
    host: str
    state: State
    op: str = ""
    site: str = ""  # of the op; of a rank that is in none: where it was seen last
    since_s: float = 0.0  # how long it has been in this op, or in none
    waits_for: tuple[int, ...] = ()
    holds_up: int = 0  # ranks that wait for it
    ops_per_s: float = 0.0
    mb_per_s: float = 0.0
    cpu_percent: float | None = None
    memory_bytes: int | None = None

    @property
    def doing(self) -> str:
        if not self.site:
            return self.op
        return f"{self.op} at {self.site}" if self.op else f"in {self.site}"


@dataclass(frozen=True)
class _OpenOp:
    """The op that a rank is blocked in."""

    op: int
    group: Group
    seq: int
    peer: int

    @property
    def is_pair(self) -> bool:
        return self.op in ring_format.POINT_TO_POINT


class Observer:
    """Looks at a run from time to time; speeds are averages since the last look."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._processes: dict[int, psutil.Process] = {}  # by pid
        self._looked_ns: dict[int, int] = {}

    def look(self) -> list[RankNow]:
        """All ranks, those that hold up most others first."""
        self._run.refresh()
        if not self._run.is_over:
            self._run.note_watching()
        found: dict[int, RankNow] = {}
        opened: dict[int, _OpenOp] = {}
        moment = self._run.moment()  # one for all ranks: a rank that is read first is not late for that
        for rank, ring in self._run.rings.items():
            found[rank], open_op = self._look_at(ring, moment.by_clock_of(ring.header, self._run.clock(rank)))
            if open_op is not None:
                opened[rank] = open_op
        held: Counter[int] = Counter()
        for waiting, missing in self._calls(opened):
            state: State = "waiting" if missing else "communicating"
            for rank in waiting:
                found[rank] = replace(found[rank], state=state, waits_for=missing)
            held.update(dict.fromkeys(missing, len(waiting)))
        for rank in range(self._run.world_size):
            if rank not in found:
                found[rank] = RankNow(rank, self._host_of(rank), "unseen")
        now = [replace(each, holds_up=held[each.rank]) if held[each.rank] else each for each in found.values()]
        return sorted(now, key=lambda each: (-each.holds_up, each.state == "ended", each.rank))

    def _calls(self, opened: dict[int, _OpenOp]) -> Iterator[tuple[list[int], tuple[int, ...]]]:
        """Ranks that are blocked in the same call, and the ranks that have not come to it."""
        together: dict[tuple[Group, int], list[int]] = {}
        for rank, mine in opened.items():
            if mine.is_pair:
                yield [rank], self._missing_partner(rank, mine, opened)
            else:
                together.setdefault((mine.group, mine.seq), []).append(rank)
        for (group, seq), ranks in together.items():
            yield ranks, tuple(other for other in group.ranks if not self._has_come(other, group.name, seq))

    def _has_come(self, rank: int, group: str, seq: int) -> bool:
        ring = self._run.rings.get(rank)
        return ring is not None and (ring.has_stopped or ring.reached.get(group, 0) >= seq)

    def _host_of(self, rank: int) -> str:
        hosts = self._run.attempt_facts.get("hosts") or {}
        return next((str(host) for host, ranks in hosts.items() if rank in ranks), "")

    def _look_at(self, ring: LiveRing, now_ns: int) -> tuple[RankNow, _OpenOp | None]:
        rank, before = ring.header.rank, ring.seen
        records = ring.read_new(now_ns)
        fresh = records[records["number"] > before]
        ops = fresh[~IS_EVENT[fresh["op"]]]
        passed_s = (now_ns - self._looked_ns.get(rank, now_ns)) / 1e9
        self._looked_ns[rank] = now_ns
        if (done := records["completed_ns"][~IS_EVENT[records["op"]]]).size:
            ring.done_ns = max(ring.done_ns, int(done.max()))
        missed = (ring.seen - before) / max(len(fresh), 1)  # of a fast rank on another host, not every record arrives
        rate = missed / passed_s if passed_s > 0 else 0.0
        speeds = len(ops) * rate, float(ops["size_bytes"].sum()) / _MB * rate
        cpu, memory = self._resources(ring)
        seen = RankNow(rank, ring.header.host, "computing", "", "", 0.0, (), 0, *speeds, cpu, memory)
        if ring.has_ended or str(rank) in (self._run.attempt_facts.get("exit_codes") or {}):
            return replace(seen, state="ended"), None
        if ring.has_stopped:
            return replace(seen, state="unseen"), None
        is_blocked = ring_format.is_blocked(records["flags"], records["waited_ns"], records["completed_ns"])
        is_open = is_blocked & ~IS_EVENT[records["op"]]
        if not is_open.any():
            since_s = max(now_ns - ring.done_ns, 0) / 1e9 if ring.done_ns else 0.0
            return replace(seen, since_s=since_s, site=_seen_at(ring, records)), None
        record = records[is_open][-1]
        since_ns = int(blocked_since_ns(record["flags"], record["entered_ns"], record["waited_ns"]))
        group = ring.groups.get(int(record["group"]), UNKNOWN_GROUP)
        found = replace(
            seen,
            op=ring_format.OPS[record["op"]],
            site=ring.sites.get(int(record["site"]), ""),
            since_s=max(now_ns - since_ns, 0) / 1e9,
        )
        return found, _OpenOp(int(record["op"]), group, int(record["seq"]), int(record["peer"]))

    def _missing_partner(self, rank: int, mine: _OpenOp, opened: dict[int, _OpenOp]) -> tuple[int, ...]:
        """Returns the other rank of a send or receive, unless that is in the matching op."""
        theirs, ring = opened.get(mine.peer), self._run.rings.get(mine.peer)
        if ring is not None and ring.has_stopped:
            return ()
        is_there = theirs is not None and theirs.peer == rank and {mine.op, theirs.op} == _SEND_AND_RECV
        return (mine.peer,) if mine.peer >= 0 and mine.peer != rank and not is_there else ()

    def _resources(self, ring: LiveRing) -> tuple[float | None, int | None]:
        """CPU and memory of ranks on this machine."""
        if not self._run.is_here:
            return None, None
        pid = ring.header.pid
        try:
            if pid not in self._processes:
                self._processes[pid] = psutil.Process(pid)
                self._processes[pid].cpu_percent()  # the first call only begins to count
                return None, int(self._processes[pid].memory_info().rss)
            process = self._processes[pid]
            if not process.is_running():  # another process may have its pid by now
                raise psutil.NoSuchProcess(pid)
            with process.oneshot():
                return process.cpu_percent(), int(process.memory_info().rss)
        except psutil.Error:
            self._processes.pop(pid, None)
            return None, None


def _seen_at(ring: LiveRing, records: NDArray[np.void]) -> str:
    """The line of the newest record, if that is a sample."""
    if not len(records) or records["op"][-1] != ring_format.OP["sample"]:
        return ""
    return ring.sites.get(int(records["site"][-1]), "")

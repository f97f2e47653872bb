"""A run with all that several checks need, each computed once."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollcall.explain import source
from rollcall.explain.ends import died_by_itself, last_failed, was_killed
from rollcall.explain.loading.load import Run
from rollcall.explain.loading.table import Op, Ops, Site
from rollcall.explain.matching import Call, Calls, Pairs
from rollcall.explain.waits import Intervals, Waits, blocked_since_ns, count, intervals, is_setup, last_rows, waits_for
from rollcall.record import ring_format
from rollcall.record.sites import waits_for_data

Found = TypeVar("Found")


@dataclass(frozen=True)
class Seen:
    """Where a rank is, and whether it waits for its data there."""

    site: Site
    is_input: bool


def is_input(site: Site) -> bool:
    """Whether a rank that waits there for a queue waits for its data: what it takes in every step. From a thread of its
    own that writes checkpoints, it takes something now and then, or only waits."""
    return not source.takes_from_queue(site) or source.is_fetched_each_time(site)


class Evidence:
    """`now_ns`: of a running job, this moment, until which open ops last."""

    def __init__(self, run: Run, now_ns: int = 0) -> None:
        self.run, self.table = run, run.table
        self._now_ns = now_ns or run.cut_ns or run.until_ns
        self.calls = Calls(run)
        self.pairs = Pairs(run)
        self._found: dict[Callable[[Evidence], Any], Any] = {}

    def once(self, find: Callable[["Evidence"], Found]) -> Found:
        """What one check finds and others ask for: a search that is made once."""
        if find not in self._found:
            self._found[find] = find(self)
        found: Found = self._found[find]
        return found

    @cached_property
    def intervals(self) -> Intervals:
        return intervals(self.run, self.last_rows, self._now_ns)

    @cached_property
    def last_rows(self) -> NDArray[np.int32]:
        return last_rows(self.table, self.calls, self.pairs)

    @cached_property
    def waits(self) -> Waits:
        return count(self.run, self.calls, self.intervals)

    @cached_property
    def device(self) -> "Evidence | None":
        """The same run as torch's Flight Recorder saw it, if it left dumps beside the rings."""
        return Evidence(self.run.device) if self.run.device else None

    @cached_property
    def blocked(self) -> dict[int, Op]:
        """By rank: the op that it is blocked in. Of several, its last; but of sends and receives that it has begun
        together, one whose partner is missing, since the others wait for that."""
        found: dict[int, Op] = {}
        for op in map(self.table.get, np.flatnonzero(self.table.is_blocked)):
            other = found.get(op.rank)
            is_held_up = other is not None and op.is_point_to_point and other.is_point_to_point
            if other is None or not (is_held_up and self.waits_for(other) and not self.waits_for(op)):
                found[op.rank] = op
        return found

    @cached_property
    def held(self) -> dict[int, Op]:
        """By rank: the op that it is blocked in, or that it was in until the op failed because of other ranks."""
        ended = [rank for rank in self.run.ranks.values() if rank.error and rank.number not in self.died_by_themselves]
        failed = {rank.number: op for rank in ended if (op := last_failed(rank)) is not None}
        return {**failed, **self.blocked}

    @cached_property
    def is_stuck(self) -> NDArray[np.bool_]:
        """Per row: an op that blocks its rank, and that does not end by itself. Else it is in flight: its rank may only
        have been quicker than the others."""
        at_ns, limit_ns = self._patience
        stuck = self.table.is_blocked.copy()
        if limit_ns:
            stuck &= blocked_since_ns(self.table.flags, self.table.entered_ns, self.table.waited_ns) <= at_ns - limit_ns
            moved = {rank for rank, moved_ns in self._moved_ns.items() if moved_ns > at_ns - limit_ns}
            for row in np.flatnonzero(stuck):
                stuck[row] = moved.isdisjoint(self.waits_for(self.table.get(row)))
        return stuck

    @property
    def _patience(self) -> tuple[int, int]:
        """A moment, and how long an op must have blocked its rank by then to be stuck.

        A running job, or that a rank has ended by failing, was never seen to stand still: there, what is blocked
        is stuck after --hang-after. In a run that somebody has stopped, it is stuck if no earlier op took as long.
        """
        hang_after_ns = int(self.run.hang_after_s * 1e9)
        if self.run.cut_ns:
            return self.run.cut_ns, hang_after_ns
        if self._first_death_ns:
            return self._first_death_ns, hang_after_ns
        if self.run.stopped_ns:
            return self.run.stopped_ns, min(self._longest_ns + 1, hang_after_ns)
        return 0, 0

    @cached_property
    def died_by_themselves(self) -> frozenset[int]:
        """Ranks whose death needs no other rank's to explain it."""
        return frozenset(rank.number for rank in self.run.ranks.values() if died_by_itself(self, rank))

    @property
    def _first_death_ns(self) -> int:
        """When the first rank was gone that failed, or was killed, by itself; 0: none did."""
        return min(map(self.ended_ns, self.died_by_themselves), default=0)

    @property
    def _longest_ns(self) -> int:
        """How long the longest op took that came to its end, without the setup of groups."""
        table = self.table
        since_ns = blocked_since_ns(table.flags, table.entered_ns, table.waited_ns)
        is_counted = (table.completed_ns > 0) & (since_ns > 0) & ~table.is_event & ~is_setup(table)
        return int((table.completed_ns - since_ns)[is_counted].max(initial=0))

    @cached_property
    def _moved_ns(self) -> dict[int, int]:
        """By rank: when it last began or ended an op."""
        table = self.table
        times = (table.entered_ns, table.issued_ns, table.waited_ns, table.completed_ns)
        return {
            rank: max(int(each[low:high].max(initial=0, where=~table.is_event[low:high])) for each in times)
            for rank, (low, high) in table.spans.items()
        }

    @cached_property
    def forwards(self) -> dict[int, int]:
        """By rank: how many forwards of a DDP module it has begun on the line of the newest one. On other lines may be
        other modules, which ranks may use any number of times."""
        ranks = self.table.rank[self._forward_rows]
        counts = np.bincount(ranks, minlength=max(self.run.ranks, default=-1) + 1)
        return {rank: int(counts[rank]) for rank in self.run.ranks}

    @cached_property
    def _forward_rows(self) -> NDArray[np.intp]:
        rows = np.flatnonzero(self.table.op == ring_format.OP["ddp_forward"])
        if not len(rows):
            return rows
        newest = rows[self.table.entered_ns[rows].argmax()]
        return np.asarray(rows[self.table.site[rows] == self.table.site[newest]])

    def forwards_since(self, average: Call, rank: int) -> int:
        """How many of these forwards a rank has begun since an average of gradients that it took part in."""
        first, last = np.searchsorted(self._forward_rows, (average.ops[rank].row, self.table.spans[rank][1]))
        return int(last - first)

    @cached_property
    def last_averages(self) -> dict[int, Call]:
        """By rank: the last average of gradients that it began before its newest forward."""
        is_forward, is_bucket = self.table.op == ring_format.OP["ddp_forward"], self.table.has(ring_format.BUCKET)
        found = {}
        for rank, (start, end) in self.table.spans.items():
            forwards = np.flatnonzero(is_forward[start:end])
            buckets = np.flatnonzero(is_bucket[start : start + forwards[-1]]) if len(forwards) else forwards
            if len(buckets) and (call := self.calls.of(self.table.get(start + buckets[-1]))) is not None:
                found[rank] = call
        return found

    @cached_property
    def is_of_killed(self) -> NDArray[np.bool_]:
        """Per row: an op of a rank that was killed by a signal."""
        killed = [rank.number for rank in self.run.ranks.values() if was_killed(rank)]
        return np.isin(self.table.rank, killed)

    @cached_property
    def stuck(self) -> dict[int, Op]:
        """By rank: the op that it is stuck in."""
        return {rank: op for rank, op in self.blocked.items() if self.is_stuck[op.row]}

    @cached_property
    def signals(self) -> Ops:
        """Signals that ranks sent."""
        return self.table.where(self.table.is_one_of("signal"))

    @cached_property
    def failing(self) -> frozenset[int]:
        """Ranks that are stuck in an op while they handle an error, as in a `finally`, since the others are in other
        ops, without such an error: their error has led them there. Where others are in no op, or handle an error, too,
        that is how the program goes on."""
        return frozenset(rank for rank in self.run.ranks if self._is_failing(rank))

    def _is_failing(self, number: int) -> bool:
        handled = self.run.ranks[number].handled
        if handled is None or not self.is_stuck[handled.row]:
            return False
        op = self.table.get(handled.row)
        call = self.calls.of(op)
        unlike = (
            [rank for rank, other in call.ops.items() if (other.op, other.site) != (op.op, op.site)] if call else []
        )
        others = [rank for rank in {*self.waits_for(op), *unlike} if rank in self.run.ranks]
        return bool(others) and all(rank in self.held and not self.run.ranks[rank].handled for rank in others)

    def polled(self, rank: int) -> Op | None:
        """The async op that a rank seems to ask for again and again: it has begun it last, it is in no op, and this one
        never ended."""
        found = self.run.ranks[rank]
        last = found.last
        if last is None or found.has_ended or rank in self.blocked:
            return None
        return last if last.is_async and not last.completed_ns and not last.is_failed else None

    def has_ended(self, rank: int) -> bool:
        found = self.run.ranks.get(rank)
        return found is not None and found.has_ended

    def ended_ns(self, rank: int) -> int:
        """When a rank ended: the end of its program, or the last that is known of it."""
        found = self.run.ranks[rank]
        last = [max(ops[-1].entered_ns, ops[-1].completed_ns) for ops in (found.ops, found.events) if ops]
        return found.ended_ns or found.gone_ns or max(last, default=0)

    def waits_for(self, op: Op) -> list[int]:
        """The ranks that a blocked op waits for; none, if its partner is there or all ranks have come to its call. A
        partner that dumps show as queued is not there: its GPU is held up by another op."""
        partner = self.pairs.partner[op.row]
        is_there = partner >= 0 and not (self.run.is_from_dumps and self._is_queued(partner))
        return [] if is_there else waits_for(self.calls, op)

    def _is_queued(self, row: int) -> bool:
        return not self.table.completed_ns[row] and not self.table.is_blocked[row]

    def ways_on(self, ranks: Iterable[int]) -> list[int]:
        """These ranks, and those that they wait for, and so on."""
        found = dict.fromkeys(rank for rank in ranks if rank in self.run.ranks)
        todo = deque(found)
        while todo:
            rank = todo.popleft()
            held = self.held.get(rank)
            new = [each for each in self.waits_for(held) if each not in found] if held else []
            new = [each for each in new if each in self.run.ranks]
            found.update(dict.fromkeys(new))
            todo.extend(new)
        return list(found)

    def seen_now(self, rank: int) -> "Seen | None":
        """Where a rank is that is in no op: by its stack, or by its newest record, if that is a sample."""
        found = self.run.ranks[rank]
        if found.own_stack and not found.has_ended:
            inner, *outer = found.own_stack
            site = Site(inner.file, inner.line, inner.function, tuple(outer))
            return Seen(site, waits_for_data((each.file, each.function) for each in found.stack) and is_input(site))
        newest = found.events[-1] if found.events else None
        last_ns = found.last.entered_ns if found.last else 0
        if newest is None or newest.op != "sample" or newest.site is None or newest.entered_ns < last_ns:
            return None
        return Seen(newest.site, newest.waits_for_data and is_input(newest.site))

    def seen_last(self, rank: int) -> Site | None:
        """The line on which a rank was seen last: in an op, sending a signal, or by the sampler."""
        found = self.run.ranks[rank]
        last = [ops[-1] for ops in (found.ops, found.events) if ops]
        newest = max(last, key=lambda op: max(op.entered_ns, op.completed_ns), default=None)
        return newest.site if newest else None

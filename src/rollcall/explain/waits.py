"""Who waited for whom: since when an op blocked its rank, until when it waited there, and for which rank.

This is the one place that computes it. The terminal, the page, the timeline and the trace draw what is here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.loading.load import Run
from rollcall.explain.loading.table import Op, Table
from rollcall.explain.matching import Calls, Pairs
from rollcall.record import ring_format

_Times = NDArray[np.int64]
_Numbers = NDArray[np.int32]  # of rows: half as large as numpy's own indices
_ROOT_SENDS = ("broadcast", "scatter")  # the other ranks wait for the root, and the root for nobody
# Ranks come to the setup of a group when they have started: that they wait there says nothing about the program.
_SETUP = ("init", "new_group", "ddp")
_MOST_OPEN = 2000  # ops that never ended and whose wait is counted; more say the same


@dataclass(frozen=True)
class Intervals:
    """Per row of the table, in ns: a rank waits from `blocked_ns` to `arrived_ns`, communicates until `ended_ns`."""

    blocked_ns: _Times  # when the op began to block its rank: of an async op, when wait() was called
    arrived_ns: _Times  # when the last rank that it waited for had arrived; `blocked_ns` if it waited for nobody
    ended_ns: _Times  # of an op that never ended: the end of the run
    last: _Numbers  # the row of the op that it waited for, if it waited; -1: a rank never arrived
    shift_ns: _Times  # if the clocks were not compared: subtracted, all ranks begin at the same time; else 0
    begin_ns: int  # the first op of the run
    end_ns: int

    @property
    def waiting_ns(self) -> _Times:
        return self.arrived_ns - self.blocked_ns

    @property
    def communicating_ns(self) -> _Times:
        return self.ended_ns - self.arrived_ns

    @property
    def run_s(self) -> float:
        return max(self.end_ns - self.begin_ns, 0) / 1e9


def intervals(run: Run, last_rows: _Numbers, now_ns: int = 0) -> Intervals:
    """`now_ns`: the end of a running job. If the hosts' clocks were not compared, there are no waits."""
    table = run.table
    shift_ns = np.broadcast_to(np.int64(0), len(table)) if run.is_one_clock else _first_op_shift_ns(table)
    end_ns = max(_end_ns(table, shift_ns), now_ns)
    blocked_ns = blocked_since_ns(table.flags, table.entered_ns, table.waited_ns)
    never_blocked = np.flatnonzero(blocked_ns == 0)
    np.maximum(blocked_ns, table.arrived_ns, out=blocked_ns)  # a GPU waits in an op from when it comes to it
    blocked_ns[never_blocked] = table.entered_ns[never_blocked]
    ended_ns = _ended_ns(table, end_ns, shift_ns)
    np.maximum(ended_ns, blocked_ns, out=ended_ns)
    ended_ns[never_blocked] = blocked_ns[never_blocked]
    arrived_ns = _arrived_ns(run, last_rows, blocked_ns, ended_ns) if run.is_one_clock else blocked_ns
    begin_ns = min((int(each.min(initial=end_ns)) for each in _begins_ns(table, shift_ns)), default=end_ns)
    return Intervals(blocked_ns, arrived_ns, ended_ns, last_rows, shift_ns, begin_ns, end_ns)


def _begins_ns(table: Table, shift_ns: _Times) -> Iterator[_Times]:
    """Rank by rank: when its ops began."""
    for start, end in table.spans.values():
        yield (table.entered_ns[start:end] - shift_ns[start:end])[~table.is_event[start:end]]


def blocked_since_ns(flags: Any, entered_ns: Any, waited_ns: Any) -> Any:
    """When an op began to block its rank, of numbers or columns: an async op when wait() is called, 0 before that."""
    return np.where(flags & ring_format.ASYNC, waited_ns, entered_ns)


def _end_ns(table: Table, shift_ns: _Times) -> int:
    times = (table.entered_ns, table.completed_ns, table.waited_ns)
    ends = [
        int((each[start:end] - shift_ns[start:end]).max(initial=0))
        for start, end in table.spans.values()
        for each in times
    ]
    return max(ends, default=0)


def _ended_ns(table: Table, end_ns: int, shift_ns: _Times) -> _Times:
    """Of ops without an end: one that failed ended when its rank did the next thing; the others continue."""
    ended_ns = table.completed_ns.copy()
    open_ops = np.flatnonzero(ended_ns == 0)
    ended_ns[open_ops] = end_ns + shift_ns[open_ops]
    failed = open_ops[table.has_failed[open_ops] & (open_ops + 1 < len(table))]
    failed = failed[table.rank[failed] == table.rank[failed + 1]]
    ended_ns[failed] = table.entered_ns[failed + 1]
    return ended_ns


def _first_op_shift_ns(table: Table) -> _Times:
    """By how much each rank's first op is later than the first of all."""
    firsts = {rank: int(table.entered_ns[low:high].min()) for rank, (low, high) in table.spans.items() if low < high}
    zero_ns = min(firsts.values(), default=0)
    shift_ns = np.zeros(len(table), dtype=np.int64)
    for rank, first_ns in firsts.items():
        shift_ns[slice(*table.spans[rank])] = first_ns - zero_ns
    return shift_ns


def last_rows(table: Table, calls: Calls, pairs: Pairs) -> _Numbers:
    """Per row: the last to arrive at its call, or the later half of a send and its receive; -1: a rank is missing."""
    last = np.full(len(table), -1, dtype=np.int32)
    if len(calls):
        last_of_call = np.where(calls.has_all, calls.last_rows, -1).astype(np.int32)
        for rows, _, part in calls.parts():
            last[rows] = np.repeat(last_of_call[part], calls.sizes[part])
        _wait_for_roots(table, calls, last)
    sends, recvs = pairs.matched()
    last[sends] = last[recvs] = np.where(table.arrived_ns[sends] > table.arrived_ns[recvs], sends, recvs)
    return last


def _wait_for_roots(table: Table, calls: Calls, last: _Numbers) -> None:
    """In a broadcast every other rank waits for the root alone."""
    is_rooted = table.is_one_of(*_ROOT_SENDS)
    if not is_rooted.any():
        return
    for rows, _, part in calls.parts():
        mine = np.flatnonzero(is_rooted[rows] & (last[rows] >= 0))
        rooted, call = rows[mine], np.repeat(np.arange(part.stop - part.start), calls.sizes[part])[mine]
        is_root = table.rank[rooted] == table.peer[rooted]
        root_of = np.full(part.stop - part.start, -1, dtype=np.int32)
        root_of[call[is_root]] = rooted[is_root]
        known = root_of[call] >= 0
        last[rooted[known]] = root_of[call[known]]


def _arrived_ns(run: Run, last: _Numbers, blocked_ns: _Times, ended_ns: _Times) -> _Times:
    """Returns until when each op waited."""
    table = run.table
    found = np.empty(len(table), dtype=np.int64)
    for part in _parts(len(table)):
        blocked, ended = blocked_ns[part], ended_ns[part]
        arrived_ns = table.arrived_ns[last[part].astype(np.intp)]  # numpy is quick with indices of its own type only
        # If a rank is missing, the op waited until its end; of an op that completed without it, that is not known.
        missing = np.flatnonzero(last[part] < 0)
        is_over = table.completed_ns[part][missing] > 0
        arrived_ns[missing] = np.where(is_over, blocked[missing], ended[missing])
        # An op that ended before the last arrived did not wait for it: a buffered send, a rank that only contributes.
        # The clocks of two hosts may each be wrong by the error of their comparison.
        not_needed = np.flatnonzero((arrived_ns > ended + 2 * run.clock_error_ns) & ~table.is_blocked[part])
        arrived_ns[not_needed] = blocked[not_needed]
        np.clip(arrived_ns, blocked, ended, out=found[part])
    return found


def _parts(size: int) -> Iterator[slice]:
    """Some rows at a time, so that nothing else is as large as the table."""
    return (slice(start, min(start + _PART, size)) for start in range(0, size, _PART))


_PART = 1 << 18  # rows: what is computed of them fits into the processor's cache


@dataclass(frozen=True)
class Waits:
    """Every wait of one rank for another, in columns, and what they sum up to. The setup of groups is not counted."""

    rank: NDArray[np.unsignedinteger]  # who waited
    for_rank: NDArray[np.unsignedinteger]
    last: _Numbers  # the row of the op that it waited for; -1: `for_rank` never arrived
    seconds: NDArray[np.float64]
    arrived_ns: _Times  # per row of the table: when its rank came to its call
    last_in: NDArray[np.int64]  # by rank: in how many of the calls it was the last to arrive
    calls: int  # that all ranks of their group came to
    run_s: float  # from the first op to the last

    @cached_property
    def caused_s(self) -> NDArray[np.float64]:
        """By rank: how long others waited for it."""
        return self._by_rank(self.for_rank, self.seconds)

    @cached_property
    def suffered_s(self) -> NDArray[np.float64]:
        """By rank: how long it waited for others."""
        return self._by_rank(self.rank, self.seconds)

    @cached_property
    def saved_s(self) -> NDArray[np.float64]:
        """By rank: how much shorter the run would be if this rank had never been the last to arrive.

        In each call that is the shortest of the waits for it, since the others would have waited for the second last.
        """
        return np.minimum(self._saved(self.is_over), self.run_s)

    def saved_without(self, ranks: Sequence[int]) -> float:
        """How much shorter the run would be if none of these ranks had ever been the last to arrive: in each call, the
        shortest of the other ranks' waits for one of them."""
        counted = self.is_over & np.isin(self.for_rank, ranks) & ~np.isin(self.rank, ranks)
        return min(float(self._saved(counted).sum()), self.run_s)

    def _saved(self, is_counted: NDArray[np.bool_]) -> NDArray[np.float64]:
        """By rank that these waits are for: the sum over calls. Both neighbours of a slow stage wait for it at the same
        time, in calls of their own: that time counts once."""
        calls = _Places(self.last, is_counted)  # the rows of a rank, in the order of time
        shortest_s = np.full(len(calls.rows), np.inf)
        whose = np.zeros(len(shortest_s), dtype=np.int32)
        for counted, place in calls.parts():
            np.minimum.at(shortest_s, place, self.seconds[counted])
            whose[place] = self.for_rank[counted]
        since_s = np.diff(self.arrived_ns[calls.rows], prepend=0) / 1e9
        since_s[np.diff(whose, prepend=-1) != 0] = np.inf
        return self._by_rank(whose, np.minimum(shortest_s, np.clip(since_s, 0, None)))

    def _by_rank(self, ranks: NDArray[np.integer], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        found = np.zeros(len(self.last_in))
        for part in _parts(len(ranks)):  # numpy makes copies of what it counts
            found += np.bincount(ranks[part], seconds[part], minlength=len(found))
        return found

    def by_call_s(self) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """The rows of those that others waited for until they came, and for how long all of these waited together."""
        calls = _Places(self.last, self.is_over)
        found_s = np.zeros(len(calls.rows))
        for counted, place in calls.parts():
            np.add.at(found_s, place, self.seconds[counted])
        return calls.rows, found_s

    def share(self, seconds: float) -> float:
        """Returns the share of the run that these seconds are."""
        return float(seconds) / self.run_s if self.run_s else 0.0

    def matrix(self, most_lines: int) -> tuple[NDArray[np.float64], int]:
        """Seconds that the ranks of a line waited for the ranks of a column; how many ranks share a line."""
        step = -(-len(self.last_in) // most_lines)
        lines = -(-len(self.last_in) // step)
        matrix = np.zeros((lines, lines))
        np.add.at(matrix, (self.rank // step, self.for_rank // step), self.seconds)
        return matrix, step

    @cached_property
    def own_delays_s(self) -> NDArray[np.float64]:
        """By rank: what it made others wait, less what it waited itself: a rank that is late because it waited passes
        the blame on. Without waits for ranks that never arrived."""
        never = np.flatnonzero(~self.is_over)
        caused_s = self.caused_s - self._by_rank(self.for_rank[never], self.seconds[never])
        return np.clip(caused_s - (self.suffered_s - self._by_rank(self.rank[never], self.seconds[never])), 0, None)

    @cached_property
    def is_over(self) -> NDArray[np.bool_]:
        """Waits for a rank that came in the end."""
        return self.last >= 0


class _Places:
    """The different rows in some places of a column, sorted; and where each of them is there. Without sorting the
    column, which is as long as the table."""

    def __init__(self, column: _Numbers, is_counted: NDArray[np.bool_]) -> None:
        self._column, self._is_counted = column, is_counted
        is_there = np.zeros(column.max(initial=-1) + 1, dtype=np.bool_)
        for part in _parts(len(column)):
            is_there[column[part][is_counted[part]].astype(np.intp)] = True
        self.rows = np.flatnonzero(is_there)
        self._place = np.empty(len(is_there), dtype=np.int32)
        self._place[self.rows] = np.arange(len(self.rows))

    def parts(self) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Some places of the column, and the place of their row in `rows`."""
        for part in _parts(len(self._column)):
            counted = part.start + np.flatnonzero(self._is_counted[part])
            yield counted, self._place[self._column[counted].astype(np.intp)].astype(np.intp)


def count(run: Run, calls: Calls, found: Intervals) -> Waits:
    table = run.table
    ranks = max(run.world_size, int(table.rank.max(initial=0)) + 1)
    is_counted = ~table.is_event & ~is_setup(table)
    missing = list(_waits_for_missing(table, calls, found, is_counted, ranks))
    rank, for_rank, last, seconds = _waits(table, found, is_counted, missing, np.min_scalar_type(ranks))
    is_whole = calls.has_all & (calls.sizes > 1) & ~calls.any(is_setup(table)) & run.is_one_clock
    last_in = np.bincount(table.rank[calls.last_rows[is_whole]], minlength=ranks)
    return Waits(rank, for_rank, last, seconds, table.arrived_ns, last_in, int(is_whole.sum()), found.run_s)


_Columns = tuple[NDArray[Any], ...]  # rank, for_rank, last, seconds


def _waits(
    table: Table, found: Intervals, is_counted: NDArray[np.bool_], missing: list[_Columns], rank_type: np.dtype[Any]
) -> _Columns:
    """Waits for a rank that arrived in the end, and those for missing ones. Each column is made once, as large as it
    has to be: they take as much memory as the table's."""
    is_late = is_counted & (found.last >= 0)
    for part in _parts(len(table)):
        is_late[part] &= found.arrived_ns[part] > found.blocked_ns[part]
    size = int(np.count_nonzero(is_late)) + sum(len(each[0]) for each in missing)
    rank, for_rank = np.empty((2, size), dtype=rank_type)
    last, seconds = np.empty(size, dtype=np.int32), np.empty(size)
    end = 0
    for part in _parts(len(table)):
        rows = part.start + np.flatnonzero(is_late[part])
        begin, end = end, end + len(rows)
        waited_for = found.last[rows].astype(np.intp)
        rank[begin:end], for_rank[begin:end] = table.rank[rows], table.rank[waited_for]
        last[begin:end] = waited_for
        seconds[begin:end] = (found.arrived_ns[rows] - found.blocked_ns[rows]) / 1e9
    for columns in missing:
        begin, end = end, end + len(columns[0])
        rank[begin:end], for_rank[begin:end], last[begin:end], seconds[begin:end] = columns
    return rank, for_rank, last, seconds


def _waits_for_missing(
    table: Table, calls: Calls, found: Intervals, is_counted: NDArray[np.bool_], ranks: int
) -> Iterator[_Columns]:
    """Waits for ranks that never arrived. Several of them share a wait, so that the sum is the time that was lost."""
    for row in np.flatnonzero(is_counted & (found.last < 0) & table.is_blocked)[:_MOST_OPEN]:
        missing = np.array([rank for rank in waits_for(calls, table.get(row)) if 0 <= rank < ranks], dtype=np.int32)
        seconds = (found.arrived_ns[row] - found.blocked_ns[row]) / 1e9 / max(len(missing), 1)
        yield np.full_like(missing, table.rank[row]), missing, np.full_like(missing, -1), np.full(len(missing), seconds)


def is_setup(table: Table) -> NDArray[np.bool_]:
    """Ops that make a group, or wrap a model: no communication of the program's own."""
    return table.is_one_of(*_SETUP)


def waits_for(calls: Calls, op: Op) -> list[int]:
    """The ranks that a blocked op waits for."""
    if op.is_point_to_point:
        return [op.peer] if op.peer >= 0 else [rank for rank in op.group.ranks if rank != op.rank]
    call = calls.of(op)
    return call.missing if call else []

"""Which ops of different ranks belong together: the n-th collective of a group, a send and its receive.

Both are indices into the table. A call becomes an object on demand.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.loading.load import Run
from rollcall.explain.loading.lost_records import ALL, Losses, begins_of_runs
from rollcall.explain.loading.table import Group, Op, Ops
from rollcall.record import ring_format


@dataclass(frozen=True)
class Call:
    """The n-th collective of a group, with the op of each of its ranks."""

    group: Group
    seq: int
    ops: dict[int, Op]

    @cached_property
    def missing(self) -> list[int]:
        return [rank for rank in self.group.ranks if rank not in self.ops]

    @property
    def blocked(self) -> list[int]:
        return [rank for rank, op in self.ops.items() if op.is_blocked]


class Calls:
    """All collectives of a run, numbered by group and then by seq; `by_time` has the order in which they began."""

    def __init__(self, run: Run) -> None:
        self.table = table = run.table
        self._made: dict[int, Call] = {}
        is_group = np.array([not group.is_non_member for group in table.names.groups])
        is_group[0] = False
        kept = table.is_collective & is_group[table.group]
        losses = Losses(run)
        first, last = losses.first_known_calls(), losses.last_known_calls()
        if first.any() or (last < ALL).any():
            kept &= (table.seq >= first[table.group]) & (table.seq <= last[table.group])
        numbers = _numbers_of_calls(table.group[kept], table.seq[kept], len(is_group))
        order = _sorted(numbers)  # the table goes by rank, so the ops of a call do, too
        numbers = numbers[order]
        self.rows = np.flatnonzero(kept).astype(np.int32)[order]  # half as large as numpy's own indices
        del order
        is_first = np.ones(len(numbers), dtype=np.bool_)
        np.not_equal(numbers[1:], numbers[:-1], out=is_first[1:])
        self.starts = np.flatnonzero(is_first)
        self.sizes = np.diff(self.starts, append=len(numbers))
        firsts = self.rows[self.starts]
        self.groups = table.group[firsts]
        self.keys = _key(self.groups, table.seq[firsts])

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def has_all(self) -> NDArray[np.bool_]:
        """Whether every rank of the group has come."""
        members = np.array([len(group.ranks) for group in self.table.names.groups])
        return np.asarray(self.sizes >= members[self.groups])

    @property
    def numbers(self) -> NDArray[np.intp]:
        """Returns the number of the call of each of `rows`. Not kept: it is as large as a column of the table."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @cached_property
    def last_rows(self) -> NDArray[np.int32]:
        """Per call: the row of the last to arrive."""
        found = np.empty(len(self), dtype=np.int32)
        for rows, starts, part in self.parts():
            arrived_ns = self.table.arrived_ns[rows]
            latest_ns = np.maximum.reduceat(arrived_ns, starts)
            places = np.flatnonzero(arrived_ns == np.repeat(latest_ns, self.sizes[part]))
            found[part] = rows[places[np.searchsorted(places, starts)]]  # of several, the first
        return found

    @cached_property
    def by_time(self) -> NDArray[np.intp]:
        return np.argsort(self.least(self.table.entered_ns), kind="stable")

    def least(self, column: NDArray[Any]) -> NDArray[Any]:
        return self._of_each(np.minimum, column)

    def all(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return self._of_each(np.logical_and, mask)

    def any(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return self._of_each(np.logical_or, mask) if mask.any() else np.zeros(len(self), dtype=np.bool_)

    def _of_each(self, reduce: np.ufunc, column: NDArray[Any]) -> NDArray[Any]:
        found = np.empty(len(self), dtype=column.dtype)
        for rows, starts, part in self.parts():
            reduce.reduceat(column[rows], starts, out=found[part])
        return found

    def differ_in(self, *columns: NDArray[Any]) -> NDArray[np.bool_]:
        """Calls whose ops differ in one of the columns."""
        found = np.zeros(len(self), dtype=np.bool_)
        for rows, starts, part in self.parts():
            for column in columns:
                values = column[rows]
                is_new = np.zeros(len(values), dtype=np.bool_)  # unlike the op before it, in the same call
                np.not_equal(values[1:], values[:-1], out=is_new[1:])
                is_new[starts] = False
                found[part] |= np.logical_or.reduceat(is_new, starts)
        return found

    def where(self, mask: NDArray[np.bool_]) -> Iterator[Call]:
        """Returns the calls in the order in which they began."""
        return (self.get(number) for number in self.by_time[mask[self.by_time]])

    def unlike(self, mask: NDArray[np.bool_], *columns: NDArray[Any]) -> Iterator[int]:
        """The calls of the mask in order of time, without those that repeat an earlier one: programs run in loops."""
        seen: set[int] = set()  # hashes: the patterns themselves may be as large as the table
        for number in self.by_time[mask[self.by_time]]:
            rows = self.rows_of(number)
            columns_of_it = (column[rows].tobytes() for column in (self.table.rank, self.table.group, *columns))
            pattern = hash(tuple(columns_of_it))
            if pattern not in seen:
                seen.add(pattern)
                yield int(number)

    def parts(self) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], slice]]:
        """Some calls at a time, whose columns fit into the processor's cache: their rows, where each call begins there,
        and their numbers. The rows are of numpy's own type of index: it is slow to look others up in a column."""
        first = 0
        while first < len(self):
            start = self.starts[first]
            end = max(int(np.searchsorted(self.starts, start + _PART)), first + 1)
            stop = self.starts[end] if end < len(self) else len(self.rows)
            yield self.rows[start:stop].astype(np.intp), self.starts[first:end] - start, slice(first, end)
            first = end

    def rows_of(self, number: int) -> NDArray[np.int32]:
        return self.rows[self.starts[number] : self.starts[number] + self.sizes[number]]

    def get(self, number: int) -> Call:
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def _make(self, number: int) -> Call:
        ops = [self.table.get(row) for row in self.rows_of(number)]
        return Call(ops[0].group, ops[0].seq, {op.rank: op for op in ops})

    def number_of(self, op: Op) -> int | None:
        key = _key(self.table.group[op.row : op.row + 1], self.table.seq[op.row : op.row + 1])[0]
        place = int(np.searchsorted(self.keys, key))
        return place if place < len(self) and self.keys[place] == key else None

    def of(self, op: Op) -> Call | None:
        number = self.number_of(op)
        return None if number is None else self.get(number)


_PART = 1 << 18  # rows


def _numbers_of_calls(group: NDArray[Any], seq: NDArray[np.uint32], groups: int) -> NDArray[np.unsignedinteger]:
    """Per op: a number for its call, which is larger for a later group, then for a later call. As small as can be: so
    they take less memory, and are sorted sooner."""
    largest = np.zeros(groups, dtype=seq.dtype)
    for start in range(0, len(seq), _PART):  # in parts: numpy is quick with indices of its own type only
        np.maximum.at(largest, group[start : start + _PART].astype(np.intp), seq[start : start + _PART])
    most = largest.astype(np.int64)
    before = np.cumsum(most + 1) - (most + 1)
    kind = np.min_scalar_type(int(before[-1] + most[-1]))
    numbers = seq.astype(kind)
    numbers += before.astype(kind)[group]
    return numbers


def _sorted(numbers: NDArray[np.unsignedinteger]) -> NDArray[np.intp]:
    """The order of numbers, equal ones as they come. By 16 bits at a time, which numpy sorts in linear time."""
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    for shift in range(16, numbers.dtype.itemsize * 8, 16):
        order = order[np.argsort((numbers >> shift).astype(np.uint16)[order], kind="stable")]
    return order


def _key(group: NDArray[Any], seq: NDArray[Any]) -> NDArray[np.uint64]:
    return np.asarray((group.astype(np.uint64) << np.uint64(32)) | seq)


class Pairs:
    """Sends and receives, matched as the network does: the n-th of a sender, receiver and tag on both sides."""

    def __init__(self, run: Run) -> None:
        self.table = table = run.table
        self._run, self._losses = run, Losses(run)
        is_send = table.op == ring_format.OP["send"]
        rows = np.flatnonzero((is_send | (table.op == ring_format.OP["recv"])) & (table.group > 0)).astype(np.int32)
        self.partner = np.full(len(table), -1, dtype=np.int32)  # by row: the row of its partner; -1: none
        self._is_lost = np.zeros(len(table), dtype=np.bool_)  # its partner may have been overwritten
        named = rows[table.peer[rows] >= 0]
        if len(named):
            self._match(named, is_send[named])
        self._match_from_any([int(row) for row in rows[table.peer[rows] < 0]], is_send)
        self.rows = rows
        self._known = [rank.number for rank in run.ranks.values() if not rank.stopped]  # recorded to their ends
        self._are_all_known = len(self._known) == run.world_size

    def _match(self, rows: NDArray[np.int32], is_send: NDArray[np.bool_]) -> None:
        table = self.table
        sender = np.where(is_send, table.rank[rows], table.peer[rows]).astype(np.int64)
        receiver = np.where(is_send, table.peer[rows], table.rank[rows]).astype(np.int64)
        # nccl ignores tags, and matches in order.
        is_cuda = np.array([each.get("device") == "cuda" for each in table.names.signatures])[table.signature[rows]]
        tag = np.where(is_cuda, 0, table.tag[rows]).astype(np.int64)
        routes = _number_alike(table.group[rows].astype(np.int64), sender, receiver, tag)
        seq = table.seq[rows].astype(np.int64)
        if not self._losses.ranks:  # else the first of a channel may be missing, and its others have no number
            seq = np.where(is_cuda & (seq > 0), _counted(routes * 2 + is_send), seq)
        pair = routes * (int(seq.max()) + 1) + seq
        order = np.argsort(pair, kind="stable")
        one, other = order[:-1], order[1:]
        met = np.flatnonzero((pair[one] == pair[other]) & (is_send[one] != is_send[other]) & (seq[one] > 0))
        mine, theirs = rows[one[met]], rows[other[met]]
        self.partner[mine], self.partner[theirs] = theirs, mine
        self._mark_lost(rows, routes * 2 + is_send, seq)

    def _mark_lost(self, rows: NDArray[np.int32], sides: NDArray[np.int64], seq: NDArray[np.int64]) -> None:
        """An op without partner may have had one that is no longer known. Not an op that still blocks its rank: what a
        ring has overwritten was over long ago, and would have ended its partner with it."""
        peer = self.table.peer[rows]
        self._is_lost[rows] = (seq == 0) | ~np.isin(peer, list(self._run.ranks))
        if self._losses.ranks:
            first = self._first_known(rows, sides, seq)
            is_alone = (self.partner[rows] < 0) & ~self.table.is_blocked[rows]
            self._is_lost[rows] |= is_alone & np.isin(peer, self._losses.ranks) & (seq < first)

    def _first_known(
        self, rows: NDArray[np.int32], sides: NDArray[np.int64], seq: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Per row: the number from which on the other side of its channel is whole."""
        firsts = np.full(int(sides.max() | 1) + 1, ALL)
        firsts[sides[seq == 0]] = ALL - 1  # its ops have no numbers: none of them is known
        numbered = np.lexsort((seq, sides))
        numbered = numbered[firsts[sides[numbered]] == ALL]
        begins = numbered[begins_of_runs(sides[numbered], seq[numbered])]
        firsts[sides[begins]] = seq[begins]  # the last of a side counts
        first: NDArray[np.int64] = firsts[sides ^ 1]
        for place in np.flatnonzero((first == ALL) & np.isin(self.table.peer[rows], self._losses.ranks)):
            first[place] = min(self._most_lost(int(rows[place])), ALL - 1) + 1  # nothing is left of the other side
        return first

    def _most_lost(self, row: int) -> int:
        """Returns how many ops on the other side are lost at most."""
        table = self.table
        op = "recv" if table.op[row] == ring_format.OP["send"] else "send"
        return self._losses.most(int(table.peer[row]), table.names.groups[table.group[row]], op)

    def _match_from_any(self, recvs: list[int], is_send: NDArray[np.bool_]) -> None:
        """A receive from any rank takes a send that no other receive took. If some are lost, that is not known."""
        table = self.table
        if self._losses.ranks:
            self._is_lost[recvs] = True
            return
        for recv in recvs:
            free = is_send & (self.partner < 0) & (table.peer == table.rank[recv]) & (table.tag == table.tag[recv])
            if free.any():
                send = self._first_sent(np.flatnonzero(free))
                self.partner[send], self.partner[recv] = recv, send

    def _first_sent(self, sends: NDArray[np.intp]) -> int:
        """One that is over, since somebody took it; of several, the one that began first."""
        is_open = self.table.completed_ns[sends] == 0
        return int(sends[np.lexsort((self.table.entered_ns[sends], is_open))[0]])

    def unmatched(self, op: str) -> Ops:
        """Those that never had a partner, as far as both sides are known."""
        is_alone = (self.partner[self.rows] < 0) & ~self._is_lost[self.rows]
        rows = self.rows[is_alone & (self.table.op[self.rows] == ring_format.OP[op])]
        peers = self.table.peer[rows]
        is_known = np.isin(peers, self._known) & np.isin(self.table.rank[rows], self._known)
        return Ops(self.table, rows[is_known | ((peers < 0) & self._are_all_known)])

    def matched(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The rows of sends and of their receives, in order of time."""
        sends = self.rows[(self.partner[self.rows] >= 0) & (self.table.op[self.rows] == ring_format.OP["send"])]
        sends = sends[np.argsort(self.table.entered_ns[sends], kind="stable")]
        return sends, self.partner[sends]


def _counted(sides: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of each op on its side of a channel, from 1 on. The recorder counts each tag by itself."""
    order = np.argsort(sides, kind="stable")
    begins = np.flatnonzero(np.diff(sides[order], prepend=-1))
    counted = np.empty_like(sides)
    counted[order] = np.arange(len(sides)) - np.repeat(begins, np.diff(begins, append=len(sides))) + 1
    return counted


def _number_alike(*columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number per combination."""
    numbers, count = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        least = int(column.min())
        span = int(column.max()) - least + 1
        if count * span >= _MOST_COMBINATIONS:
            numbers, count = _numbered(numbers)
        numbers, count = numbers * span + (column - least), count * span
    return _numbered(numbers)[0]


_MOST_COMBINATIONS = 1 << 62  # int64 has no room for more


def _numbered(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Numbers from 0 on in place of values; and how many there are."""
    different = np.unique(values)
    return np.searchsorted(different, values), len(different)


def deviants(values: dict[int, Any]) -> list[int]:
    """The ranks that differ from the majority; all ranks if there is none."""
    counts = Counter(values.values())
    (common, most), *rest = counts.most_common()
    if not rest:
        return []
    if rest[0][1] == most or len(values) < 3:
        return sorted(values)
    return sorted(rank for rank, value in values.items() if value != common)

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

from rollcall.explain.load import Run
from rollcall.explain.table import Group, Op, Ops
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
        kept = ~table.is_event & ~table.is_one_of("send", "recv") & ~table.is_non_member
        kept &= table.seq >= _first_known(run)[table.group]
        rows = np.flatnonzero(kept)
        keys = _key(table.group[rows], table.seq[rows])
        order = np.argsort(keys, kind="stable")  # the table goes by rank, so the ops of a call do, too
        self.rows, keys = rows[order], keys[order]
        self.starts = np.flatnonzero(np.diff(keys, prepend=keys[0] + 1 if len(keys) else 0))
        self.keys = keys[self.starts]
        self.sizes = np.diff(self.starts, append=len(keys))
        self.groups = table.group[self.rows[self.starts]]

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def has_all(self) -> NDArray[np.bool_]:
        """Whether every rank of the group has come."""
        members = np.array([len(group.ranks) for group in self.table.names.groups])
        return np.asarray(self.sizes >= members[self.groups])

    @cached_property
    def numbers(self) -> NDArray[np.intp]:
        """Of each of `rows`: the number of its call."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @cached_property
    def last_rows(self) -> NDArray[np.intp]:
        """Per call: the row of the last to arrive."""
        arrived_ns = self.table.entered_ns[self.rows]
        places = np.flatnonzero(arrived_ns == np.repeat(self.most(self.table.entered_ns), self.sizes))
        first = np.flatnonzero(np.diff(self.numbers[places], prepend=-1))
        return self.rows[places[first]]

    @cached_property
    def by_time(self) -> NDArray[np.intp]:
        return np.argsort(self.least(self.table.entered_ns), kind="stable")

    def least(self, column: NDArray[Any]) -> NDArray[Any]:
        return np.minimum.reduceat(column[self.rows], self.starts) if len(self) else column[:0]

    def most(self, column: NDArray[Any]) -> NDArray[Any]:
        return np.maximum.reduceat(column[self.rows], self.starts) if len(self) else column[:0]

    def any(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.logical_or.reduceat(mask[self.rows], self.starts) if len(self) else mask[:0]

    def differ_in(self, *columns: NDArray[Any]) -> NDArray[np.bool_]:
        """Calls whose ops differ in one of the columns."""
        found = np.zeros(len(self), dtype=np.bool_)
        for column in columns:
            found |= self.least(column) != self.most(column)
        return found

    def where(self, mask: NDArray[np.bool_]) -> Iterator[Call]:
        """In the order in which they began."""
        return (self.get(number) for number in self.by_time[mask[self.by_time]])

    def unlike(self, mask: NDArray[np.bool_], *columns: NDArray[Any]) -> Iterator[int]:
        """The calls of the mask in order of time, without those that repeat an earlier one: programs run in loops."""
        seen: set[tuple[bytes, ...]] = set()
        for number in self.by_time[mask[self.by_time]]:
            rows = self.rows_of(number)
            pattern = tuple(column[rows].tobytes() for column in (self.table.rank, self.table.group, *columns))
            if pattern not in seen:
                seen.add(pattern)
                yield int(number)

    def rows_of(self, number: int) -> NDArray[np.intp]:
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


def _key(group: NDArray[Any], seq: NDArray[Any]) -> NDArray[np.uint64]:
    return np.asarray((group.astype(np.uint64) << np.uint64(32)) | seq)


def _first_known(run: Run) -> NDArray[np.int64]:
    """Per group: the oldest call that no rank's ring has overwritten."""
    table = run.table
    first = np.zeros(len(table.names.groups), dtype=np.int64)
    counts: Counter[tuple[int, str]] = Counter()
    for folded in run.folded:
        if folded.op not in ("send", "recv"):
            counts[folded.rank, folded.group] += folded.count
    for (_, name), count in counts.items():
        for number, group in enumerate(table.names.groups):
            if group.name == name:
                first[number] = max(first[number], count + 1)
    in_part = [rank.number for rank in run.ranks.values() if rank.dropped]
    return _leave_out_older(run, in_part, first) if in_part else first


def _leave_out_older(run: Run, in_part: list[int], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of ranks whose older records are not here: their calls before their first one of a group are not known. Nor are
    those of a group of which they have none, if others made them before their records begin."""
    table = run.table
    calls = np.flatnonzero(~table.is_event & ~table.is_one_of("send", "recv") & ~table.is_non_member)
    calls = calls[np.argsort(table.group[calls], kind="stable")]
    starts = np.searchsorted(table.group[calls], np.arange(len(table.names.groups) + 1))
    for number, group in enumerate(table.names.groups):
        rows = calls[starts[number] : starts[number + 1]]  # rank by rank, as the table is
        for rank in in_part if len(rows) else ():
            if rank not in group.ranks:
                continue
            low, high = table.spans[rank]
            own = rows[np.searchsorted(rows, low) : np.searchsorted(rows, high)]
            begins_ns = table.entered_ns[low] if low < high else np.iinfo(np.int64).max
            older = table.seq[rows[table.entered_ns[rows] < begins_ns]] if not len(own) else table.seq[:0]
            known = int(table.seq[own].min()) if len(own) else int(older.max(initial=0)) + 1
            first[number] = max(first[number], known)
    return first


class Pairs:
    """Sends and receives, matched as the network does: by sender, receiver and tag, in order."""

    def __init__(self, run: Run) -> None:
        self.table = table = run.table
        is_send = table.op == ring_format.OP["send"]
        rows = np.flatnonzero(is_send | (table.op == ring_format.OP["recv"]))
        self.partner = np.full(len(table), -1, dtype=np.int64)  # by row: the row of its partner; -1: none
        named = rows[table.peer[rows] >= 0]
        if len(named):
            self._match(named, is_send[named])
        self._match_from_any([int(row) for row in rows[table.peer[rows] < 0]], is_send)
        self.rows = rows

    def _match(self, rows: NDArray[np.intp], is_send: NDArray[np.bool_]) -> None:
        table = self.table
        sender = np.where(is_send, table.rank[rows], table.peer[rows]).astype(np.int64)
        receiver = np.where(is_send, table.peer[rows], table.rank[rows]).astype(np.int64)
        # nccl ignores tags, and matches in order.
        is_cuda = np.array([each.get("device") == "cuda" for each in table.names.signatures])[table.signature[rows]]
        tag = np.where(is_cuda, 0, table.tag[rows]).astype(np.int64)
        routes = _number_alike(table.group[rows].astype(np.int64), sender, receiver, tag)
        sides = routes * 2 + is_send
        order = np.argsort(sides, kind="stable")
        sides = sides[order]
        begins = np.flatnonzero(np.diff(sides, prepend=-1))
        turns = np.arange(len(sides)) - np.repeat(begins, np.diff(begins, append=len(sides)))  # the n-th of its side
        pair = (sides // 2) * (int(turns.max()) + 1) + turns
        again = np.argsort(pair, kind="stable")
        ordered = pair[again]
        met = np.flatnonzero(ordered[1:] == ordered[:-1])
        one, other = rows[order[again[met]]], rows[order[again[met + 1]]]
        self.partner[one], self.partner[other] = other, one

    def _match_from_any(self, recvs: list[int], is_send: NDArray[np.bool_]) -> None:
        """A receive from any rank takes a send that no other receive took."""
        table = self.table
        for recv in recvs:
            free = is_send & (self.partner < 0) & (table.peer == table.rank[recv]) & (table.tag == table.tag[recv])
            if free.any():
                send = int(np.argmax(free))
                self.partner[send], self.partner[recv] = recv, send

    def unmatched(self, op: str) -> Ops:
        """Those without a partner."""
        rows = self.rows[(self.partner[self.rows] < 0) & (self.table.op[self.rows] == ring_format.OP[op])]
        return Ops(self.table, rows)

    def matched(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The rows of sends and of their receives, in order of time."""
        sends = self.rows[(self.partner[self.rows] >= 0) & (self.table.op[self.rows] == ring_format.OP["send"])]
        sends = sends[np.argsort(self.table.entered_ns[sends], kind="stable")]
        return sends, self.partner[sends]


def _number_alike(*columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number per combination."""
    numbers = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        _, part = np.unique(column, return_inverse=True)
        _, numbers = np.unique(numbers * (int(part.max()) + 1) + part, return_inverse=True)
    return numbers


def deviants(values: dict[int, Any]) -> list[int]:
    """The ranks that differ from the majority; all ranks if there is none."""
    counts = Counter(values.values())
    (common, most), *rest = counts.most_common()
    if not rest:
        return []
    if rest[0][1] == most or len(values) < 3:
        return sorted(values)
    return sorted(rank for rank, value in values.items() if value != common)

"""Where the time of communication goes: by op, by line of the program, by phase, by size; and how much was hidden
behind computing. The setup of groups is not counted."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.evidence import View
from rollcall.explain.table import site_in_words
from rollcall.explain.waits import is_setup
from rollcall.record import ring_format

_MOST_POINTS = 2000


@dataclass(frozen=True)
class Cost:
    """Ops of all ranks together. A rank is blocked in an op while it waits for others and while it communicates; the
    op is hidden while it is in flight and its rank does something else."""

    name: str
    ops: int
    size_bytes: int
    waiting_s: float
    communicating_s: float
    hidden_s: float
    site: str = ""
    group: str = ""

    @property
    def blocked_s(self) -> float:
        return self.waiting_s + self.communicating_s

    @property
    def mean_s(self) -> float:
        return self.blocked_s / self.ops


@dataclass(frozen=True)
class Costs:
    by_op: tuple[Cost, ...]
    by_site: tuple[Cost, ...]
    by_phase: tuple[Cost, ...]

    @property
    def overlap(self) -> float:
        """The part of communication that cost no time."""
        hidden_s = sum(cost.hidden_s for cost in self.by_op)
        whole_s = hidden_s + sum(cost.blocked_s for cost in self.by_op)
        return hidden_s / whole_s if whole_s else 0.0


def count(view: View) -> Costs:
    columns = _Columns(view)
    table, names = view.table, view.table.names
    return Costs(
        columns.sums(table.op, lambda number: ring_format.OPS[number]),
        columns.sums(table.site, lambda number: str(names.sites[number] or "?")),
        columns.sums(table.phase, lambda number: names.phases[number] or "(none)"),
    )


class _Columns:
    """What is summed up of each op."""

    def __init__(self, view: View) -> None:
        table, found = view.table, view.intervals
        self.rows = rows = np.flatnonzero(~table.is_event & ~is_setup(table))
        self._size = table.size_bytes[rows]
        self._waiting_ns, self._communicating_ns = found.waiting_ns[rows], found.communicating_ns[rows]
        is_hidden = table.is_async[rows] & (table.waited_ns[rows] > 0)
        self._hidden_ns = np.where(is_hidden, np.clip(table.waited_ns[rows] - table.issued_ns[rows], 0, None), 0)

    def sums(self, numbers: NDArray[np.integer], name: Callable[[int], str]) -> tuple[Cost, ...]:
        """One cost per number that a column has, the largest first."""
        return self.costs(numbers[self.rows], lambda number, sums: Cost(name(number), *sums))

    def costs(self, numbers: NDArray[np.integer], make: Callable[..., Cost]) -> tuple[Cost, ...]:
        """Of numbers from 0 on, one per row."""
        counts = np.bincount(numbers)
        columns = [self._size, self._waiting_ns / 1e9, self._communicating_ns / 1e9, self._hidden_ns / 1e9]
        size, *seconds = (np.bincount(numbers, column) for column in columns)
        found = [
            make(int(n), (int(counts[n]), int(size[n]), *(float(each[n]) for each in seconds)))
            for n in np.flatnonzero(counts)
        ]
        return tuple(sorted(found, key=lambda cost: -cost.blocked_s))


def by_line(view: View) -> tuple[Cost, ...]:
    """One cost per op, line of the program and group, the largest first."""
    columns, table = _Columns(view), view.table
    rows = columns.rows
    op, site, group = (column[rows].astype(np.int64) for column in (table.op, table.site, table.group))
    key = (op * (int(site.max(initial=0)) + 1) + site) * (int(group.max(initial=0)) + 1) + group
    _, first, number = np.unique(key, return_index=True, return_inverse=True)

    def make(number: int, sums: tuple[int, int, float, float, float]) -> Cost:
        op = table.get(rows[first[number]])
        return Cost(op.op, *sums, site=site_in_words(op.site), group=op.group.name)

    return columns.costs(number, make)


@dataclass(frozen=True)
class Speed:
    """Ops of one name and size: how many bytes a second they moved once all ranks were there."""

    op: str
    size_bytes: int
    bytes_per_s: float  # the median
    count: int


def by_size(view: View) -> list[Speed]:
    """Of ops that ended and moved something, those of the most frequent sizes."""
    table = view.table
    communicating_ns = view.intervals.communicating_ns
    is_good = ~table.is_event & (table.size_bytes > 0) & (communicating_ns > 0) & ~table.is_blocked & ~table.has_failed
    rows = np.flatnonzero(is_good)
    size = table.size_bytes[rows]
    key = table.op[rows].astype(np.int64) * (int(size.max(initial=0)) + 1) + size
    speed = size / (communicating_ns[rows] / 1e9)
    order = np.lexsort((speed, key))
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    counts = np.diff(starts, append=len(order))
    found = [
        Speed(ring_format.OPS[table.op[rows[middle]]], int(size[middle]), float(speed[middle]), int(number))
        for middle, number in zip(order[starts + counts // 2], counts, strict=True)
    ]
    return sorted(found, key=lambda each: -each.count)[:_MOST_POINTS]

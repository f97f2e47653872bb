"""Where the time of communication goes: by op, by line of the program, by phase, by size; and how much was hidden
behind computing. The setup of groups is not counted."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.table import site_in_words
from rollcall.explain.waits import is_setup
from rollcall.record import ring_format

_MOST_POINTS = 2000  # of a drawing: more cover each other


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


def count(evidence: Evidence) -> Costs:
    table, names = evidence.table, evidence.table.names
    by_op, by_site, by_phase = _sums(evidence, table.op, table.site, table.phase)
    return Costs(
        _largest_first(replace(cost, name=ring_format.OPS[number]) for number, cost in by_op),
        _largest_first(replace(cost, name=str(names.sites[number] or "?")) for number, cost in by_site),
        _largest_first(replace(cost, name=names.phases[number] or "(none)") for number, cost in by_phase),
    )


def by_line(evidence: Evidence) -> tuple[Cost, ...]:
    """One cost per op, line of the program and group, the largest first."""
    table = evidence.table
    op, site, group = (column.astype(np.int64) for column in (table.op, table.site, table.group))
    key = (op * (int(site.max(initial=0)) + 1) + site) * (int(group.max(initial=0)) + 1) + group
    _, first, line = np.unique(key, return_index=True, return_inverse=True)
    [costs] = _sums(evidence, line)
    ops = ((table.get(first[number]), cost) for number, cost in costs)
    return _largest_first(
        replace(cost, name=op.op, site=site_in_words(op.site), group=op.group.name) for op, cost in ops
    )


def _largest_first(costs: Iterable[Cost]) -> tuple[Cost, ...]:
    return tuple(sorted(costs, key=lambda cost: -cost.blocked_s))


def _sums(evidence: Evidence, *keys: NDArray[np.integer]) -> list[list[tuple[int, Cost]]]:
    """Per key: each number that ops have there, with the cost of these ops, which has no name yet."""
    sizes = [int(key.max(initial=0)) + 1 for key in keys]
    sums = [np.zeros((_SUMMED, size)) for size in sizes]
    for rows, *columns in _parts(evidence):
        for key, size, whole in zip(keys, sizes, sums, strict=True):
            if size == 1:  # all ops have number 0, as in a program without phases
                whole[:-1, 0] += [column.sum() for column in columns]
                continue
            numbers = key[rows].astype(np.intp)
            for place, column in enumerate(columns):
                whole[place] += np.bincount(numbers, column, size)
    for rows, hidden_ns in _hidden_ns(evidence):
        for key, size, whole in zip(keys, sizes, sums, strict=True):
            whole[-1] += np.bincount(key[rows], hidden_ns, size)
    return [_costs(whole) for whole in sums]


_SUMMED = 5  # ops, bytes, waiting, communicating, hidden
_PART = 1 << 18  # rows: what is computed of them fits into the processor's cache


def _costs(sums: NDArray[np.float64]) -> list[tuple[int, Cost]]:
    found = [(number, *sums[:, number].tolist()) for number in np.flatnonzero(sums[0]).tolist()]
    return [(number, Cost("", int(ops), int(size), *(ns / 1e9 for ns in times))) for number, ops, size, *times in found]


def _parts(evidence: Evidence) -> Iterator[tuple[Any, ...]]:
    """Some rows, and what is summed up of them: 0 where an op is not counted."""
    table, found = evidence.table, evidence.intervals
    is_counted = _is_counted(evidence)
    for start in range(0, len(table), _PART):
        rows = slice(start, start + _PART)
        counted = is_counted[rows].astype(np.float64)
        waiting_ns = found.arrived_ns[rows] - found.blocked_ns[rows]
        communicating_ns = found.ended_ns[rows] - found.arrived_ns[rows]
        yield rows, counted, table.size_bytes[rows] * counted, waiting_ns * counted, communicating_ns * counted


def _is_counted(evidence: Evidence) -> NDArray[np.bool_]:
    return np.asarray(~evidence.table.is_event & ~is_setup(evidence.table))


def _hidden_ns(evidence: Evidence) -> Iterator[tuple[NDArray[np.intp], NDArray[np.int64]]]:
    """Rows of async ops, and how long each was in flight while its rank did something else. It is in flight from when
    all ranks have issued it. If it was complete when it was waited for, it is not known since when: then it is taken to
    have lasted as long as ops of its kind and size that were seen to end."""
    table = evidence.table
    all_rows = np.flatnonzero(table.is_async & (table.waited_ns > 0) & _is_counted(evidence))
    if not len(all_rows):
        return
    usual = _Usual(evidence, all_rows)
    for rows in _split(all_rows):
        began_ns = _in_flight_since_ns(evidence, rows)
        waited_ns, completed_ns = table.waited_ns[rows], table.completed_ns[rows]
        was_complete = completed_ns - waited_ns <= _AT_ONCE_NS
        ended_ns = np.where(was_complete, np.minimum(began_ns + usual.mean_ns(rows), waited_ns), waited_ns)
        is_device_time = (completed_ns > 0) & (completed_ns < waited_ns)
        yield rows, np.clip(np.where(is_device_time, completed_ns, ended_ns) - began_ns, 0, None)


_AT_ONCE_NS = 50_000  # a wait() that only finds its op complete returns within this, also on a busy machine


def _in_flight_since_ns(evidence: Evidence, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    last = evidence.last_rows[rows] if evidence.run.is_one_clock else rows
    arrived_ns = evidence.table.arrived_ns[np.where(last >= 0, last, rows)]
    return np.maximum(evidence.table.issued_ns[rows], arrived_ns)


class _Usual:
    """How long ops took that blocked their rank until their end: the mean, by kind and size."""

    def __init__(self, evidence: Evidence, rows: NDArray[np.intp]) -> None:
        self._table = evidence.table
        self._known = np.unique(np.concatenate([np.unique(self._kinds(part)) for part in _split(rows)]))
        sum_ns, count = np.zeros((2, len(self._known)))
        for part, took_ns in _seen_to_end(evidence, rows):
            its = self._kinds(part)
            place = np.minimum(np.searchsorted(self._known, its), len(self._known) - 1)
            is_known = self._known[place] == its
            sum_ns += np.bincount(place[is_known], took_ns[is_known], len(self._known))
            count += np.bincount(place[is_known], minlength=len(self._known))
        self._mean_ns = (sum_ns / np.maximum(count, 1)).astype(np.int64)

    def mean_ns(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Per row; 0 if no op of its kind and size was seen to end."""
        return np.asarray(self._mean_ns[np.searchsorted(self._known, self._kinds(rows))])

    def _kinds(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        table = self._table
        size_bytes = table.size_bytes[rows].astype(np.int64)
        return np.asarray(table.op[rows].astype(np.int64) << 48 | np.minimum(size_bytes, (1 << 48) - 1))


def _split(rows: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    return (rows[start : start + _PART] for start in range(0, len(rows), _PART))


def _seen_to_end(evidence: Evidence, rows: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.int64]]]:
    """Rows whose op ended while its rank was blocked in it, and how long it took: those of `rows`, which are async, and
    all blocking ops of the same names."""
    table, found = evidence.table, evidence.intervals
    for part in _split(rows):
        seen = part[table.completed_ns[part] - table.waited_ns[part] > _AT_ONCE_NS]
        yield seen, table.completed_ns[seen] - _in_flight_since_ns(evidence, seen)
    is_like = np.zeros(256, dtype=np.bool_)
    is_like[np.unique(table.op[rows])] = True
    blocking = np.flatnonzero(is_like[table.op] & ~table.is_async & (table.completed_ns > 0))
    for part in _split(blocking):
        yield part, found.ended_ns[part] - found.arrived_ns[part]


@dataclass(frozen=True)
class Speed:
    """Ops of one name and size: how many bytes a second they moved once all ranks were there."""

    op: str
    size_bytes: int
    bytes_per_s: float  # the median
    count: int


def by_size(evidence: Evidence) -> list[Speed]:
    """Counts ops that ended and moved something, for the most frequent sizes."""
    table = evidence.table
    communicating_ns = evidence.intervals.communicating_ns
    is_good = ~table.is_event & (table.size_bytes > 0) & (communicating_ns > 0) & ~table.is_blocked & ~table.has_failed
    rows = np.flatnonzero(is_good)
    size = table.size_bytes[rows].astype(np.int64)
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

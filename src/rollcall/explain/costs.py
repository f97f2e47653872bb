"""Where the time of communication goes: by op, by line of the program, by phase, by size; and how much was hidden
behind computing. The setup of groups is not counted."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.evidence import Evidence
from rollcall.explain.table import site_in_words
from rollcall.explain.waits import is_setup, last_rows
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
    sums = [[np.bincount(key, column) for key in keys] for column in _columns(evidence)]
    found = []
    for ops, size, waiting_ns, communicating_ns, hidden_ns in zip(*sums, strict=True):
        seconds = np.stack([waiting_ns, communicating_ns, hidden_ns], axis=1) / 1e9
        numbers = np.flatnonzero(ops).tolist()
        found.append([(n, Cost("", int(ops[n]), int(size[n]), *seconds[n].tolist())) for n in numbers])
    return found


def _columns(evidence: Evidence) -> Iterator[NDArray[Any]]:
    """What is summed up, one column at a time: of ten million ops, each takes its memory. 0 where an op is not
    counted."""
    table, found = evidence.table, evidence.intervals
    is_counted = ~table.is_event & ~is_setup(table)
    yield is_counted
    yield table.size_bytes * is_counted
    yield found.waiting_ns * is_counted
    yield found.communicating_ns * is_counted
    yield _hidden_ns(evidence) * is_counted


def _hidden_ns(evidence: Evidence) -> NDArray[np.int64]:
    """Per row: how long an async op was in flight while its rank did something else. It is in flight from when all
    ranks have issued it. If it was complete when it was waited for, it is not known since when: then it is taken to
    have lasted as long as ops of its kind and size that were seen to end."""
    table = evidence.table
    hidden_ns = np.zeros(len(table), dtype=np.int64)
    rows = np.flatnonzero(table.is_async & (table.waited_ns > 0))
    if not len(rows):
        return hidden_ns
    began_ns = _in_flight_since_ns(evidence, rows)
    waited_ns, completed_ns = table.waited_ns[rows], table.completed_ns[rows]
    usual_ns = _usual_ns(evidence, rows, began_ns)
    was_complete = completed_ns - waited_ns <= _AT_ONCE_NS
    ended_ns = np.where(was_complete, np.minimum(began_ns + usual_ns, waited_ns), waited_ns)
    is_device_time = (completed_ns > 0) & (completed_ns < waited_ns)
    hidden_ns[rows] = np.clip(np.where(is_device_time, completed_ns, ended_ns) - began_ns, 0, None)
    return hidden_ns


_AT_ONCE_NS = 50_000  # a wait() that only finds its op complete returns within this, also on a busy machine


def _in_flight_since_ns(evidence: Evidence, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    is_one_clock = evidence.run.is_one_clock
    last = last_rows(evidence.table, evidence.calls, evidence.pairs)[rows] if is_one_clock else rows
    arrived_ns = evidence.table.entered_ns[np.where(last >= 0, last, rows)]
    return np.maximum(evidence.table.issued_ns[rows], arrived_ns)


def _usual_ns(evidence: Evidence, rows: NDArray[np.intp], began_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Per row: the mean of what ops of its kind and size took that blocked their rank until their end; 0 if there are
    none."""
    table = evidence.table
    blocking = np.flatnonzero(np.isin(table.op, np.unique(table.op[rows])) & ~table.is_async & (table.completed_ns > 0))
    seen = rows[table.completed_ns[rows] - table.waited_ns[rows] > _AT_ONCE_NS]
    took_ns = (
        evidence.intervals.communicating_ns[blocking],
        table.completed_ns[seen] - began_ns[np.searchsorted(rows, seen)],
    )
    every = np.concatenate([rows, blocking, seen])
    key = table.op[every].astype(np.int64) << 48 | np.minimum(table.size_bytes[every], (1 << 48) - 1)
    _, kind = np.unique(key, return_inverse=True)
    known = kind[len(rows) :]
    mean_ns = np.bincount(known, np.concatenate(took_ns), kind.max() + 1) / np.maximum(
        np.bincount(known, minlength=kind.max() + 1), 1
    )
    return np.asarray(mean_ns[kind[: len(rows)]], dtype=np.int64)


@dataclass(frozen=True)
class Speed:
    """Ops of one name and size: how many bytes a second they moved once all ranks were there."""

    op: str
    size_bytes: int
    bytes_per_s: float  # the median
    count: int


def by_size(evidence: Evidence) -> list[Speed]:
    """Of ops that ended and moved something, those of the most frequent sizes."""
    table = evidence.table
    communicating_ns = evidence.intervals.communicating_ns
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

"""Ranks that keep the others waiting."""

from collections.abc import Iterator

import numpy as np

from rollcall.explain.evidence import View
from rollcall.explain.finding import Finding, of_ops
from rollcall.explain.table import Op
from rollcall.explain.waits import caused_in_calls_ns, is_waited_in, last_rows
from rollcall.record import ring_format

_ENOUGH_CALLS, _MOST_OF_IT, _NOTABLE, _NOTABLE_S = 5, 0.7, 0.2, 0.3


def latecomers(view: View) -> Iterator[Finding]:
    """One rank that costs the others a good part of the run: as a rule, or because its data did not come."""
    found = view.waits
    # Who is late because it waited itself passes the blame on.
    own_s = {rank: max(0.0, caused_s - found.suffered_s[rank]) for rank, caused_s in found.caused_s.items()}
    total_s = sum(own_s.values())
    if not total_s or not found.run_s:
        return
    rank = max(own_s, key=lambda each: own_s[each])
    share = found.saved(rank)
    if own_s[rank] < _MOST_OF_IT * total_s or share < _NOTABLE or own_s[rank] < _NOTABLE_S:
        return
    told = f"the others waited for rank {rank} {share:.0%} of the time (it was the last in {found.last[rank]} of"
    told += f" {found.calls} calls): without its delay the run would be that much shorter"
    fetching = _samples(view, rank, ring_format.INPUT)
    if sum(map(_seconds, fetching)) > share * found.run_s / 2:
        message = f"{told}; meanwhile it waited for its data at {fetching[0].site}"
        yield of_ops("input-stall", [rank], message, [fetching[0], *_late(view, rank)], waits=found.caused_s)
    elif _is_a_habit(view, rank):
        seen = _samples(view, rank)[:2]
        if seen:
            told += f"; meanwhile it was seen at {seen[0].site}"
        yield of_ops("straggler", [rank], told, [*seen, *_late(view, rank)], waits=found.caused_s)


def _is_a_habit(view: View, rank: int) -> bool:
    """Again and again, not once: the wait is spread over many calls."""
    waited = caused_in_calls_ns(view.calls, view.pairs, rank).astype(np.float64)
    return bool(waited.sum() ** 2 > _ENOUGH_CALLS * (waited**2).sum())


def _samples(view: View, rank: int, flag: int = 0) -> list[Op]:
    """Where it was seen between its ops: one sample per line, the longest first."""
    table = view.table
    mask = (table.op == ring_format.OP["sample"]) & (table.rank == rank) & ((table.flags & flag) == flag)
    rows = np.flatnonzero(mask)
    if not len(rows):
        return []
    lines, place = np.unique(table.site[rows], return_inverse=True)
    total_ns = np.bincount(place, table.completed_ns[rows] - table.entered_ns[rows] + _LEAST_NS)
    first = [rows[np.argmax(place == number)] for number in range(len(lines))]
    return [table.get(first[number]) for number in np.argsort(-total_ns)]


_LEAST_NS = 20_000_000  # what a sample stands for: the time between two looks


def _seconds(sample: Op) -> float:
    return (sample.completed_ns - sample.entered_ns) / 1e9


def _late(view: View, rank: int) -> list[Op]:
    """The call that it was late for, at last."""
    lasts = last_rows(view.calls)[is_waited_in(view.calls)]
    return [view.table.get(row) for row in lasts[view.table.rank[lasts] == rank][-1:]]

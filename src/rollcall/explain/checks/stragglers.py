"""Ranks that keep the others waiting."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, of_ops
from rollcall.explain.table import Op
from rollcall.record import ring_format

_ENOUGH_CALLS = 5
_MOST_OF_IT = 0.7  # of all delays
_NOTABLE, _NOTABLE_S = 0.2, 0.3  # share of the run; seconds


def stragglers(evidence: Evidence) -> Iterator[Finding]:
    """One rank that costs the others a good part of the run: again and again, or because it waited for its data."""
    waits = evidence.waits
    own_s = _own_delays_s(evidence)
    rank = int(np.argmax(own_s))
    share = waits.share(waits.saved_s[rank])
    if own_s[rank] < _MOST_OF_IT * own_s.sum() or share < _NOTABLE or own_s[rank] < _NOTABLE_S:
        return
    message = (
        f"rank {rank} arrived last in {waits.last_in[rank]} of {waits.calls} calls: without its delays the run would be"
        f" {share:.0%} shorter"
    )
    caused_s = {number: float(waits.caused_s[number]) for number in evidence.run.ranks}
    fetching, fetching_s = _samples(evidence, rank, ring_format.INPUT)
    if fetching_s > share * waits.run_s / 2:
        message += f"; meanwhile it waited for its data at {fetching[0].site}"
        finding = of_ops("input-stall", [rank], message, [fetching[0], *_late(evidence, rank)], waits=caused_s)
        yield replace(finding, effect="slow")
    elif _is_a_habit(evidence, rank):
        samples, _ = _samples(evidence, rank)
        seen = samples[:2]
        if seen:
            message += f"; meanwhile it was seen at {seen[0].site}"
        finding = of_ops("straggler", [rank], message, [*seen, *_late(evidence, rank)], waits=caused_s)
        yield replace(finding, effect="slow")


def _own_delays_s(evidence: Evidence) -> NDArray[np.float64]:
    """By rank: what it made others wait, less what it waited itself: a rank that is late because it waited passes the
    blame on. A rank that never arrived is another finding."""
    waits, size = evidence.waits, len(evidence.waits.last_in)
    seconds = np.where(waits.is_over, waits.seconds, 0)
    return np.clip(np.bincount(waits.for_rank, seconds, size) - np.bincount(waits.rank, seconds, size), 0, None)


def _is_a_habit(evidence: Evidence, rank: int) -> bool:
    """Again and again, not once: the delay is spread over many calls."""
    waits = evidence.waits
    mine = np.flatnonzero(waits.is_over & (waits.for_rank == rank))
    _, call = np.unique(waits.last[mine], return_inverse=True)
    by_call_s = np.bincount(call, waits.seconds[mine])
    return bool(by_call_s.sum() ** 2 > _ENOUGH_CALLS * (by_call_s**2).sum())


def _samples(evidence: Evidence, rank: int, flag: int = 0) -> tuple[list[Op], float]:
    """Where it was seen between its ops: one sample per line, the longest first; and the seconds of all."""
    table = evidence.table
    mask = (table.op == ring_format.OP["sample"]) & (table.rank == rank) & ((table.flags & flag) == flag)
    rows = np.flatnonzero(mask)
    length_ns = table.completed_ns[rows] - table.entered_ns[rows]
    _, first, line = np.unique(table.site[rows], return_index=True, return_inverse=True)
    by_line_ns = np.bincount(line, length_ns + _SAMPLE_NS)
    longest_first = rows[first[np.argsort(-by_line_ns)]]
    return [table.get(row) for row in longest_first], float(length_ns.sum()) / 1e9


_SAMPLE_NS = 20_000_000  # the time between two samples


def _late(evidence: Evidence, rank: int) -> list[Op]:
    """The last op of the line for which it was late most."""
    waits = evidence.waits
    mine = waits.is_over & (waits.for_rank == rank)
    rows = waits.last[mine]
    site = evidence.table.site[rows]
    worst = np.argmax(np.bincount(site, waits.seconds[mine]))
    return [evidence.table.get(rows[site == worst].max())]

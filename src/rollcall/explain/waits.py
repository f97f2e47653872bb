"""Who waited for whom: in each call, everyone for the last to arrive."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.load import Run
from rollcall.explain.matching import Calls, Pairs
from rollcall.explain.table import Table
from rollcall.record import ring_format


@dataclass(frozen=True)
class Waits:
    """Seconds per rank, and how often each was the last; `run_s` is from the first op to the last."""

    caused_s: dict[int, float]
    suffered_s: dict[int, float]
    last: dict[int, int]
    calls: int
    run_s: float

    def share(self, seconds: float) -> float:
        """Of the run."""
        return seconds / self.run_s if self.run_s else 0.0

    def saved(self, rank: int) -> float:
        """By how much the run would be shorter, had this rank never been late: what it cost each of the others."""
        return self.share(self.caused_s[rank] / max(len(self.caused_s) - 1, 1))


def count(run: Run, calls: Calls, pairs: Pairs) -> Waits:
    ranks = sorted(run.ranks)
    size = max(ranks, default=-1) + 1
    caused, suffered, last, counted = np.zeros(size), np.zeros(size), np.zeros(size, dtype=np.int64), 0
    if len(calls) and run.is_one_clock:
        chosen = is_waited_in(calls)
        counted = int(chosen.sum())
        waited = waited_ns(calls) * np.repeat(chosen, calls.sizes)
        suffered += np.bincount(run.table.rank[calls.rows], waited, minlength=size)
        lasts = run.table.rank[last_rows(calls)]
        caused += np.bincount(lasts, np.add.reduceat(waited, calls.starts), minlength=size)
        last += np.bincount(lasts[chosen], minlength=size)
    for mine, theirs, waited in _waited_in_pairs(run.table, pairs) if run.is_one_clock else ():
        suffered += np.bincount(run.table.rank[mine], waited, minlength=size)
        caused += np.bincount(run.table.rank[theirs], waited, minlength=size)
    return Waits(
        {rank: float(caused[rank]) / 1e9 for rank in ranks},
        {rank: float(suffered[rank]) / 1e9 for rank in ranks},
        {rank: int(last[rank]) for rank in ranks},
        counted,
        _seconds(run),
    )


def blocked_since_ns(table: Table) -> NDArray[np.int64]:
    """From when on a rank did nothing but wait for an op: an async one blocks nobody before wait()."""
    since = np.where(table.has(ring_format.ASYNC), table.waited_ns, table.entered_ns)
    return np.where(since > 0, since, np.iinfo(np.int64).max)


def waited_ns(calls: Calls) -> NDArray[np.int64]:
    """Per op of the calls: how long it was blocked until the last had come. Who was done before did not wait for it, as
    the root of a broadcast."""
    latest = np.repeat(calls.most(calls.table.entered_ns), calls.sizes)
    completed = calls.table.completed_ns[calls.rows]
    is_done_before = (completed > 0) & (completed < latest)
    return np.where(is_done_before, 0, np.clip(latest - blocked_since_ns(calls.table)[calls.rows], 0, None))


def caused_in_calls_ns(calls: Calls, pairs: Pairs, rank: int) -> NDArray[np.int64]:
    """What a rank made the others wait, in each call that it was the last in, and in each send or receive."""
    table = calls.table
    found = [np.zeros(0, dtype=np.int64)]
    if len(calls):
        chosen = is_waited_in(calls) & (table.rank[last_rows(calls)] == rank)
        found.append(np.add.reduceat(waited_ns(calls), calls.starts)[chosen])
    found += [waited[table.rank[theirs] == rank] for _, theirs, waited in _waited_in_pairs(table, pairs)]
    return np.concatenate(found)


_Rows = NDArray[np.intp]


def _waited_in_pairs(table: Table, pairs: Pairs) -> Iterator[tuple[_Rows, _Rows, NDArray[np.int64]]]:
    """Of sends that wait for their receives, and the other way round: the rows of both, and how long."""
    sends, recvs = pairs.met()
    blocked_ns = blocked_since_ns(table)
    for mine, theirs in ((sends, recvs), (recvs, sends)):
        yield mine, theirs, np.clip(table.entered_ns[theirs] - blocked_ns[mine], 0, None)


def is_waited_in(calls: Calls) -> NDArray[np.bool_]:
    """Calls that all ranks of their group came to, and that are not the making of the world."""
    return calls.has_all & (calls.sizes > 1) & ~calls.any(calls.table.is_one_of("init", "ddp", "new_group"))


def last_rows(calls: Calls) -> NDArray[np.intp]:
    """Per call, the row of the last to arrive."""
    arrivals = calls.table.entered_ns
    is_latest = arrivals[calls.rows] == np.repeat(calls.most(arrivals), calls.sizes)
    places = np.flatnonzero(is_latest)
    of_call = np.repeat(np.arange(len(calls)), calls.sizes)[places]
    _, first = np.unique(of_call, return_index=True)
    return calls.rows[places[first]]


def _seconds(run: Run) -> float:
    table = run.table
    if not len(table):
        return 0.0
    last_ns = max(int(table.entered_ns.max()), int(table.completed_ns.max()))
    return (last_ns - int(table.entered_ns.min())) / 1e9

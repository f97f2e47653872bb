"""Who waited for whom, in seconds; what each rank caused and suffered; and what if nobody had had to wait for one."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.evidence import View
from rollcall.explain.waits import is_waited_in
from rollcall.timeline.model import Bars

MOST_LINES = 64  # of the matrix: more ranks share a line
_MOST_OPEN = 2000


@dataclass(frozen=True)
class Waiting:
    """Seconds. Line i of the matrix waited for column j; each stands for `step` ranks."""

    matrix: NDArray[np.float64]
    step: int
    caused_s: NDArray[np.float64]  # per rank
    suffered_s: NDArray[np.float64]
    saved_s: NDArray[np.float64]  # by how much the run were shorter, had this rank never been the last alone
    run_s: float


def count(view: View, bars: Bars, begin_ns: int) -> Waiting:
    ranks = max(view.run.world_size, int(bars.rank.max()) + 1 if len(bars.rank) else 0, 1)
    step = -(-ranks // MOST_LINES)
    lines = -(-ranks // step)
    matrix, caused, suffered = np.zeros((lines, lines)), np.zeros(ranks), np.zeros(ranks)
    known = (bars.last_rank >= 0) & (bars.wait_ns > 0) & (bars.last_rank != bars.rank)
    _add(matrix, caused, suffered, step, bars.rank[known], bars.last_rank[known], bars.wait_ns[known] / 1e9)
    for bar in np.flatnonzero((bars.last_rank < 0) & bars.is_open)[:_MOST_OPEN]:
        missing = [rank for rank in view.waits_for(view.table.get(bars.row[bar])) if 0 <= rank < ranks]
        if missing:
            whom = np.array(missing)
            share = np.full(len(missing), bars.wait_ns[bar] / 1e9 / len(missing))
            _add(matrix, caused, suffered, step, np.full(len(missing), bars.rank[bar]), whom, share)
    run_s = max(bars.end_ns - begin_ns, 0) / 1e9
    return Waiting(matrix, step, caused, suffered, np.minimum(_saved(view, ranks), run_s), run_s)


def _add(
    matrix: NDArray[np.float64],
    caused: NDArray[np.float64],
    suffered: NDArray[np.float64],
    step: int,
    who: NDArray[np.int32] | NDArray[np.int64],
    whom: NDArray[np.int64],
    seconds: NDArray[np.float64],
) -> None:
    np.add.at(matrix, (who // step, whom // step), seconds)
    caused += np.bincount(whom, seconds, minlength=len(caused))
    suffered += np.bincount(who, seconds, minlength=len(suffered))


def _saved(view: View, ranks: int) -> NDArray[np.float64]:
    """In each call: from the second last to the last. What comes before is others' fault, too."""
    calls = view.calls
    saved = np.zeros(ranks)
    if not len(calls) or not view.run.is_one_clock:
        return saved
    arrived = view.table.entered_ns[calls.rows]
    last = np.repeat(calls.most(view.table.entered_ns), calls.sizes)
    is_last = arrived == last
    second = np.maximum.reduceat(np.where(is_last, 0, arrived), calls.starts)
    alone = np.add.reduceat(is_last.astype(np.int64), calls.starts) == 1
    counts = is_waited_in(calls) & alone & (second > 0)
    gap_s = np.where(counts, calls.most(view.table.entered_ns) - second, 0) / 1e9
    who = view.table.rank[calls.rows][is_last]
    first_last = np.flatnonzero(is_last)
    of_call = np.repeat(np.arange(len(calls)), calls.sizes)[first_last]
    np.add.at(saved, who, np.where(counts[of_call], gap_s[of_call], 0.0))
    return saved

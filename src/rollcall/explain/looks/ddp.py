"""Modules that are wrapped in DDP: ranks that have other batches than the rest, or that leave parameters out."""

from collections.abc import Iterator

import numpy as np

from rollcall.explain.calls import deviants
from rollcall.explain.finding import Finding, each, of_ops
from rollcall.explain.table import Op
from rollcall.explain.view import View
from rollcall.record import layout


def uneven_inputs(view: View) -> Iterator[Finding]:
    """Ranks that went through their DDP module more or less often than the others, where that ended badly."""
    counts = _forwards(view)
    failed = [rank for rank in view.run.ranks.values() if rank.error or rank.exit_code is None or rank.exit_code]
    if not failed or len(set(counts.values())) < 2 or not all(counts.values()):
        return
    odd = deviants(counts)
    last = [_last_forward(view, rank) for rank in odd]
    stuck = [view.blocked[rank] for rank in odd if rank in view.blocked]
    message = f"the ranks had different numbers of batches for their DDP module ({each(counts)})"
    yield of_ops("ddp-uneven-inputs", odd, message, [*last, *stuck])


def _forwards(view: View) -> dict[int, int]:
    rows = np.flatnonzero(view.table.op == layout.OP["ddp_forward"])
    counts = np.bincount(view.table.rank[rows], minlength=max(view.run.ranks, default=-1) + 1)
    return {rank: int(counts[rank]) for rank in view.run.ranks}


def _last_forward(view: View, rank: int) -> Op:
    rows = np.flatnonzero((view.table.op == layout.OP["ddp_forward"]) & (view.table.rank == rank))
    return view.table.get(rows[-1])

"""Modules that are wrapped in DDP: ranks with more or fewer batches than the others, or with unused parameters."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from rollcall.explain.checks.deaths import is_consequence
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, each, of_ops
from rollcall.explain.matching import deviants
from rollcall.explain.table import Op
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.record import ring_format


def uneven_inputs(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that called their DDP module more or less often than the others, in a run that did not end well."""
    if any(rank.dropped or rank.stopped for rank in evidence.run.ranks.values()):
        return  # some are overwritten or were not recorded: how many batches there were is not known
    counts = _forwards(evidence)
    failed = [rank for rank in evidence.run.ranks.values() if rank.error or rank.exit_code is None or rank.exit_code]
    if not failed or len(set(counts.values())) < 2 or not all(counts.values()):
        return
    odd = deviants(counts)
    if any(_ended_by_itself(evidence, rank) for rank in odd):
        return  # its end explains why it made fewer calls
    last = [_last_forward(evidence, rank) for rank in odd]
    stuck = [evidence.blocked[rank] for rank in odd if rank in evidence.blocked]
    message = f"the ranks had different numbers of batches for their DDP module ({each(counts)})"
    yield of_ops("ddp-uneven-inputs", odd, message, [*last, *stuck])


def _ended_by_itself(evidence: Evidence, rank: int) -> bool:
    found = evidence.run.ranks[rank]
    was_killed = found.exit_code is not None and found.exit_code < 0
    return was_killed or (bool(found.error) and not is_consequence(evidence, found))


def unused_parameters(evidence: Evidence) -> Iterator[Finding]:
    """Backwards that ended before the gradients of all parameters were averaged."""
    short = {rank: phase for rank in evidence.run.ranks if (phase := _short_backward(evidence, rank)) is not None}
    if short:
        first = min(short.values(), key=lambda op: op.entered_ns)
        message = (
            f"on {ranks_in_words(short)} the backward at {first.site} ended before all parameters of the DDP module had"
            f" a gradient: the forward did not use them, so their buckets were never averaged"
        )
        yield of_ops("ddp-unused-parameter", short, message, list(short.values()))


def _short_backward(evidence: Evidence, rank: int) -> Op | None:
    """The phase of the last or second last backward, if it ended before all gradients were averaged."""
    table = evidence.table
    start, end = table.spans[rank]
    rows = np.arange(start, end)
    forwards = rows[table.op[rows] == ring_format.OP["ddp_forward"]]
    for forward, following in itertools.pairwise([*forwards[-2:], end]):
        expected = table.get(forward).size_bytes  # a forward counts elements there
        inside = [table.get(row) for row in range(forward + 1, min(following + 1, end))]
        backward = next((op for op in inside if op.op == "phase" and op.phase == "backward"), None)
        if not expected or backward is None or not backward.completed_ns:
            continue
        if any(op.is_bucket and not op.signature for op in inside):
            continue  # the ring had no room for their shapes
        averaged = sum(_elements(op) for op in inside if op.is_bucket)
        went_on = any(op.entered_ns >= backward.completed_ns and op.op not in ("exception", "sample") for op in inside)
        if averaged < expected and went_on:
            return backward
    return None


def _elements(op: Op) -> int:
    return sum(math.prod(shape) for shape in op.signature.get("shapes", []))


def _forwards(evidence: Evidence) -> dict[int, int]:
    rows = np.flatnonzero(evidence.table.op == ring_format.OP["ddp_forward"])
    counts = np.bincount(evidence.table.rank[rows], minlength=max(evidence.run.ranks, default=-1) + 1)
    return {rank: int(counts[rank]) for rank in evidence.run.ranks}


def _last_forward(evidence: Evidence, rank: int) -> Op:
    rows = np.flatnonzero((evidence.table.op == ring_format.OP["ddp_forward"]) & (evidence.table.rank == rank))
    return evidence.table.get(rows[-1])

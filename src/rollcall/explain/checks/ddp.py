"""Modules that are wrapped in DDP: ranks with more or fewer batches than the others, or with unused parameters."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rollcall.explain import source
from rollcall.explain.ends import raised_in_forward
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, each, of_ops
from rollcall.explain.loading.table import Op, Site
from rollcall.explain.matching import Call, deviants
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.record import ring_format


def uneven_inputs(evidence: Evidence) -> Iterator[Finding]:
    if (finding := evidence.once(uneven)) is not None:
        yield finding


def uneven(evidence: Evidence) -> Finding | None:
    """Ranks that had fewer batches than others, or that have left out a backward."""
    if any(rank.dropped or rank.stopped for rank in evidence.run.ranks.values()):
        return None  # some are overwritten or were not recorded: how many batches there were is not known
    return _fewer_batches(evidence) or _left_out_backward(evidence)


def _fewer_batches(evidence: Evidence) -> Finding | None:
    """Ranks that are in a forward or backward of their DDP module, while those with fewer batches are past their loop:
    they have ended, or are in another call after it. A rank that is in no op may still come."""
    counts = evidence.forwards
    if len(set(counts.values())) < 2 or not all(counts.values()):
        return None
    most = max(counts.values())
    waiting = [op for rank, count in counts.items() if count == most and (op := _waits_in(evidence, rank))]
    cut_short = _cut_short(evidence)
    fewer = [rank for rank, count in counts.items() if count < most and rank not in cut_short]
    if not fewer or not any(map(_is_of_module, waiting)) or not all(_is_past_loop(evidence, rank) for rank in fewer):
        return None
    loops = {_last_forward(evidence, rank).site for rank in [*fewer, *(op.rank for op in waiting)]}
    if len(loops) > 1:
        return None  # the others are in another loop: they have gone on after a call that only the first ones make
    unknown = [rank for rank, count in counts.items() if count < most and rank in cut_short]
    odd = fewer if unknown else deviants(counts)
    last = [_last_forward(evidence, rank) for rank in odd]
    stuck = [op for rank in odd if (op := _stopped_in(evidence, rank)) is not None]
    known = each({rank: count for rank, count in counts.items() if rank not in unknown})
    message = f"the ranks had different numbers of batches for their DDP module ({known})"
    if unknown:
        message += f"; {ranks_in_words(unknown)} may have had more, and were ended before"
    finding = of_ops("ddp-uneven-inputs", odd, message, [*last, *stuck, *waiting[:1]])
    began_ns = min(_last_forward(evidence, op.rank).entered_ns for op in waiting)
    ends = [(op.site, _last_forward(evidence, rank).site) for rank in fewer if (op := _stopped_in(evidence, rank))]
    ways_out = next((found for end, loop in ends if (found := source.ways_out_of_loop(end, loop))), ())
    return replace(finding, since_ns=began_ns, sites=(*finding.sites, *ways_out))


def _left_out_backward(evidence: Evidence) -> Finding | None:
    """Ranks that are in a forward in which DDP's reducer waits for the others, in no op, while those are past their
    loop. Averages meet by number: a rank that has left one out has made its last one with an earlier one of the others,
    and comes to no forward after that, though it may have made as many forwards as they."""
    in_forward = [] if evidence.run.cut_ns else sorted(evidence.once(_in_forward) - evidence.blocked.keys())
    average = next((call for rank in in_forward if (call := evidence.last_averages.get(rank)) is not None), None)
    if average is None:
        return None
    counts = {rank: evidence.forwards_since(average, rank) for rank in average.ops}
    most, cut_short = max(counts.values()), _cut_short(evidence)
    waiting = [rank for rank in in_forward if counts.get(rank) == most]
    fewer = [rank for rank, count in counts.items() if count < most and rank not in cut_short]
    if not waiting or not fewer or not all(_has_left(evidence, rank, waiting[0]) for rank in fewer):
        return None
    parted = _parted(evidence, average, fewer[0], waiting[0])
    return _explain_parted(evidence, parted, waiting, fewer, fewer if cut_short else deviants(counts))


def _explain_parted(
    evidence: Evidence, parted: tuple[Op, Op] | None, waiting: list[int], fewer: list[int], odd: list[int]
) -> Finding | None:
    if parted is None:
        return None
    forward = _last_forward(evidence, waiting[0])
    message = (
        f"the forward of {ranks_in_words(waiting)} at {forward.site} needs {ranks_in_words(fewer)}, which made none"
        f" after the last average of gradients that all of them made; before, {_how_parted(*parted)}"
    )
    return of_ops("missing-rank", odd, message, [*parted, forward, _last_forward(evidence, fewer[0])])


def _has_left(evidence: Evidence, rank: int, waiting: int) -> bool:
    """Whether a rank is past the loop in which another one waits for it, and has not gone to another loop."""
    if not evidence.forwards[rank]:
        return False  # with join(), a rank without batches takes part in the averages
    mine, theirs = (_last_forward(evidence, each).site for each in (rank, waiting))
    if mine is None or theirs is None or (mine != theirs and source.is_outside_loop(mine, theirs)):
        return False
    return _is_past_loop(evidence, rank)


def _parted(evidence: Evidence, average: Call, mine: int, theirs: int) -> tuple[Op, Op] | None:
    """The first forward or backward of two ranks that is not the same on both, before an average that both made."""
    made = zip(_passes(evidence, average.ops[mine]), _passes(evidence, average.ops[theirs]), strict=False)
    return next(((own, other) for own, other in made if _facts_of_pass(own) != _facts_of_pass(other)), None)


def _passes(evidence: Evidence, average: Op) -> Iterator[Op]:
    """The forwards and backwards of a rank until its part of an average."""
    table = evidence.table
    rows = np.arange(table.spans[average.rank][0], average.row)
    found = (table.get(row) for row in rows[table.is_one_of("ddp_forward", "phase")[rows]])
    return (op for op in found if op.phase in ("forward", "backward"))


def _facts_of_pass(op: Op) -> tuple[str, Site | None, bool]:
    return op.phase, op.site, _is_averaged(op)


def _is_averaged(op: Op) -> bool:
    """Whether the gradients of a forward are to be averaged: not in no_sync()."""
    return op.op == "ddp_forward" and op.size_bytes > 0


def _how_parted(mine: Op, theirs: Op) -> str:
    if (mine.phase, mine.site) == (theirs.phase, theirs.site):
        one, other = (mine.rank, theirs.rank) if _is_averaged(mine) else (theirs.rank, mine.rank)
        return f"rank {one} averaged the gradients of the forward at {mine.site}, and rank {other} did not"
    return " while ".join(f"rank {op.rank} made the {op.phase} at {op.site}" for op in (mine, theirs))


def explains(evidence: Evidence, call: Call) -> bool:
    """Whether ranks differ in a call because some are in their DDP module, and those with fewer batches are past it."""
    finding = evidence.once(uneven)
    if finding is None or finding.kind != "ddp-uneven-inputs":
        return False
    most = max(evidence.forwards.values())
    return all(_is_of_module(op) == (evidence.forwards.get(rank) == most) for rank, op in call.ops.items())


def _waits_in(evidence: Evidence, rank: int) -> Op | None:
    """Where a rank is stopped; also a forward, in which the reducer may wait for other ranks in C++."""
    in_forward = not evidence.run.cut_ns and is_in_forward(evidence, rank)
    return _stopped_in(evidence, rank) or (_last_forward(evidence, rank) if in_forward else None)


def _stopped_in(evidence: Evidence, rank: int) -> Op | None:
    """The op in which a rank is stuck, or that failed at its end. In a running job, an op is only in flight: with
    join(), ranks that have no batches left make other calls than the others, and all of them end."""
    last = next((op for op in reversed(evidence.run.ranks[rank].ops[-_RECENT:]) if op.is_failed), None)
    return (evidence.stuck if evidence.run.cut_ns else evidence.blocked).get(rank) or last


_RECENT = 64  # the buckets of a backward


def _cut_short(evidence: Evidence) -> frozenset[int]:
    """The ranks that the launcher ended while they computed, since another one had failed: they may have had more
    batches."""
    ranks = evidence.run.ranks.values()
    if evidence.run.cut_ns or not any(rank.exit_code for rank in ranks):
        return frozenset()
    return frozenset(rank.number for rank in ranks if rank.exit_code is None and rank.number not in evidence.blocked)


def _is_of_module(op: Op) -> bool:
    """DDP made this call: the average of a bucket, or the broadcast of buffers before a forward."""
    return op.is_bucket or op.phase in ("forward", "backward")


def _is_past_loop(evidence: Evidence, rank: int) -> bool:
    op, forward = _stopped_in(evidence, rank) or evidence.polled(rank), _last_forward(evidence, rank)
    found = evidence.run.ranks[rank]
    if found.exit_code == 0:  # unless it called sys.exit in the middle of the loops
        exit_site = found.exit_site
        return exit_site is None or forward.site is None or source.is_outside_loops(exit_site, forward.site)
    if op is None or _is_of_module(op) or op.entered_ns < forward.entered_ns or not op.site or not forward.site:
        return False
    return source.is_outside_loop(op.site, forward.site) and not _is_its_own(evidence, op, forward)


def _is_its_own(evidence: Evidence, op: Op, forward: Op) -> bool:
    """Whether only this rank makes this call: it stands under a condition in an outer loop, and no other rank was ever
    there. Then the rank has not run out of batches: the others have gone on without that call."""
    table = evidence.table
    made = (table.site == table.site[op.row]) & (table.rank != op.rank)
    is_chosen = op.site is not None and forward.site is not None and source.is_chosen_in_loop(op.site, forward.site)
    return is_chosen and not made.any()


def unused_parameters(evidence: Evidence) -> Iterator[Finding]:
    if (finding := evidence.once(_unused)) is not None:
        yield finding


def _unused(evidence: Evidence) -> Finding | None:
    """Backwards that ended before the gradients of all parameters were averaged."""
    short = {rank: found for rank in evidence.run.ranks if (found := _short_backward(evidence, rank)) is not None}
    if not short:
        return None
    first = min((backward for backward, _ in short.values()), key=lambda op: op.entered_ns)
    message = (
        f"on {ranks_in_words(short)} the backward at {first.site} ended before all parameters of the DDP module had"
        f" a gradient: the forward did not use them, so their buckets were never averaged"
    )
    # The reducer raises in the next forward; ranks that averaged their buckets wait for those that did not.
    table = evidence.table
    is_lost = (table.has(ring_format.BUCKET) & table.has_failed) | (table.is_blocked & evidence.is_of_killed)
    has_stopped = bool(evidence.stuck or is_lost.any()) or any(evidence.run.ranks[rank].error for rank in short)
    backwards, forwards = zip(*short.values(), strict=True)
    finding = of_ops("ddp-unused-parameter", short, message, [*backwards, *forwards])
    return replace(finding, since_ns=first.entered_ns, effect="stopped" if has_stopped else "wrong")


def without_gradients(evidence: Evidence, call: Call) -> tuple[int, ...]:
    """Returns the ranks whose backward ended before the average had all of their gradients."""
    is_average = any(op.is_bucket for op in call.ops.values())
    finding = evidence.once(_unused) if is_average else None
    return finding.ranks if finding else ()


def _short_backward(evidence: Evidence, rank: int) -> tuple[Op, Op] | None:
    """The phase of the last or second last backward, if it ended before all gradients were averaged; and its
    forward."""
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
            return backward, table.get(forward)
    return None


def _elements(op: Op) -> int:
    return sum(math.prod(shape) for shape in op.signature.get("shapes", []))


def is_in_forward(evidence: Evidence, rank: int) -> bool:
    return rank in evidence.once(_in_forward)


def _in_forward(evidence: Evidence) -> frozenset[int]:
    """The ranks that have not come to the end of their last forward, or in which it raised."""
    table = evidence.table
    rows = np.flatnonzero(table.op == ring_format.OP["ddp_forward"])
    last = dict(zip(table.rank[rows].tolist(), table.completed_ns[rows].tolist(), strict=True))
    return frozenset(
        rank for rank, completed_ns in last.items() if not completed_ns or raised_in_forward(evidence.run.ranks[rank])
    )


def _last_forward(evidence: Evidence, rank: int) -> Op:
    rows = np.flatnonzero((evidence.table.op == ring_format.OP["ddp_forward"]) & (evidence.table.rank == rank))
    return evidence.table.get(rows[-1])

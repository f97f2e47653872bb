"""Calls that a rank does not come to."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rollcall.explain import source
from rollcall.explain.checks import p2p
from rollcall.explain.checks.deaths import was_stopped
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, in_ops, of_call, sites, wait_in, where
from rollcall.explain.load import Rank
from rollcall.explain.matching import Call
from rollcall.explain.table import Op, Site
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.record import ring_format


def incomplete_worlds(evidence: Evidence) -> Iterator[Finding]:
    """init_process_group that failed or hangs."""
    table, calls = evidence.table, evidence.calls
    stuck_in_init = table.is_one_of("init") & (evidence.is_stuck | table.has_failed)
    for call in calls.where(calls.any(stuck_in_init)):
        stuck = [op for op in call.ops.values() if op.op == "init" and (op.is_blocked or op.is_failed)]
        absent = [rank for rank in evidence.run.ranks if rank not in call.ops]
        if any(_has_fallen(evidence, rank) for rank in absent):
            return
        never = (
            f"; {ranks_in_words(absent)} never called it" if absent else ", which waits for more ranks than there are"
        )
        message = f"{ranks_in_words(op.rank for op in stuck)} did not get through {where(stuck[0])}{never}"
        places = tuple(site for rank in absent if (site := _place_of(evidence.run.ranks[rank])) is not None)
        finding = of_call("world-incomplete", call, absent or [op.rank for op in stuck], message, stuck)
        yield replace(finding, sites=(*places[:_FEW], *finding.sites))
        return


_FEW = 3


def _place_of(rank: Rank) -> Site | None:
    """Where it exited, or where it is."""
    return rank.exit_site or (rank.stack[0] if rank.stack else None)


def missing_ranks(evidence: Evidence) -> Iterator[Finding]:
    """Collectives in which some ranks wait, and to which others do not come."""
    calls = evidence.calls
    for call in calls.where(~calls.has_all & calls.any(_is_waiting(evidence))):
        absent = [rank for rank in call.missing if rank in evidence.run.ranks]
        if any(_has_fallen(evidence, rank) or evidence.run.ranks[rank].exit_code == 0 for rank in absent):
            continue  # that it does not come follows from that
        absent = [rank for rank in absent if not evidence.has_ended(rank)]
        if absent and (finding := _explain(evidence, call, absent)) is not None:
            yield finding
            return


def _is_waiting(evidence: Evidence) -> NDArray[np.bool_]:
    """Ops that are stuck, or that failed since a rank did not come: those of a barrier with a timeout. If a rank has
    died by itself, ops fail for that."""
    table = evidence.table
    if evidence.died_by_themselves:
        return evidence.is_stuck
    gave_up = table.has_failed & ((table.issued_ns > 0) | (table.op == ring_format.OP["barrier"]))
    return np.asarray(evidence.is_stuck | gave_up)


def _has_fallen(evidence: Evidence, number: int) -> bool:
    """A rank that died, was stopped or was cut off."""
    rank = evidence.run.ranks[number]
    is_lost = any(number in lost.ranks for lost in evidence.run.lost)
    return is_lost or number in evidence.died_by_themselves or was_stopped(evidence, rank)


def _explain(evidence: Evidence, call: Call, absent: list[int]) -> Finding | None:
    """What the missing ranks do instead; None if another finding tells why they do not come."""
    waiting = [op for op in call.ops.values() if op.is_blocked or op.is_failed]
    chain = evidence.ways_on(absent)
    in_ops = [evidence.blocked[rank] for rank in chain if rank in evidence.blocked]
    if _have_reasons(evidence, call, in_ops):
        return None
    in_other_ops = [op for op in in_ops if op.rank in absent]
    idle = [rank for rank in chain if rank not in evidence.blocked and not evidence.has_ended(rank)]
    if in_other_ops and (not idle or _circle(evidence, in_other_ops[0].rank)):
        return _explain_other_ops(evidence, call, absent, waiting, in_other_ops)
    between = [op for op in in_ops if op.rank not in call.ops] if not set(idle) <= set(absent) else []
    return _explain_idle(evidence, call, idle or absent, waiting, between)


def _explain_idle(evidence: Evidence, call: Call, idle: list[int], waiting: list[Op], between: list[Op]) -> Finding:
    """In the end all wait for ranks that are in no op: directly, or for those `between`, which wait for them."""
    message = ", ".join([wait_in(waiting), *([in_ops(between)] if between else [])])
    if stalled := _stalled(evidence, idle, waiting):
        kind, place, words = stalled
        message += f"; {ranks_in_words(idle)} {_are(idle)} {words} {place}"
        finding = of_call(kind, call, idle, message, waiting, **_use_of_processor(evidence, idle))
        return replace(finding, sites=(place, *sites([*waiting, *between])))
    kind = {"new_group": "group-incomplete", "init": "world-incomplete"}.get(waiting[0].op, "missing-rank")
    what = f"{_are(idle)} in no op" if between else "never made this call"
    return of_call(kind, call, idle, f"{message}; {ranks_in_words(idle)} {what}", [*waiting, *between])


def _have_reasons(evidence: Evidence, call: Call, in_ops: list[Op]) -> bool:
    """Whether one of these ranks is stuck for a reason of its own: in a call on which its ranks disagree, or in a
    receive of what was sent under another tag or to another rank."""
    told = p2p.misaddressed(evidence)
    told_rows = set(told.evidence["rows"]) if told else set()
    others = [op for op in in_ops if op.rank not in call.ops and not op.is_point_to_point]
    return any(_disagree(evidence, op) for op in others) or any(op.row in told_rows for op in in_ops)


def _disagree(evidence: Evidence, op: Op) -> bool:
    call = evidence.calls.of(op)
    ops = call.ops.values() if call else ()
    return len({(each.op, each.reduce, each.peer, str(each.signature)) for each in ops}) > 1


def _explain_other_ops(
    evidence: Evidence, call: Call, absent: list[int], waiting: list[Op], in_other_ops: list[Op]
) -> Finding:
    """The missing ranks are blocked in another op."""
    first = in_other_ops[0]
    kind, looked_at = "missing-rank", absent
    circle = _circle(evidence, first.rank)
    if waiting[0].op == "new_group":
        kind = "group-incomplete"
    elif first.op == "new_group":
        kind, looked_at = "group-incomplete", evidence.waits_for(first) or call.blocked
    elif first.is_point_to_point:
        kind, looked_at = "p2p-against-collective", _fewer(absent, call)
    elif first.group != call.group and circle:
        kind = "cross-group-deadlock"
        looked_at = _fewer(absent, call) if set(first.group.ranks) == set(call.group.ranks) else circle
        in_other_ops = [evidence.blocked[rank] for rank in circle]
    message = f"{wait_in(waiting)}, while {ranks_in_words(absent)} {_are(absent)} in {where(first)}"
    return of_call(kind, call, looked_at, message, [*waiting, *in_other_ops])


def _are(absent: list[int]) -> str:
    return "are" if len(absent) > 1 else "is"


def _stalled(evidence: Evidence, absent: list[int], waiting: list[Op]) -> tuple[str, Site, str] | None:
    """What a missing rank does that is in no op and has not ended: the kind, the line of its stack or of the newest
    sample, and how that is told."""
    for rank in absent:
        seen = evidence.seen_now(rank)
        if seen is None:
            continue
        if waiting[0].site is not None and source.is_past(seen.site, waiting[0].site):
            return "missing-rank", seen.site, "past this call already, at"
        if seen.is_input:
            return "input-stall", seen.site, "waiting for data at"
        return (
            "busy-rank",
            seen.site,
            "stuck, without using the processor, at" if _is_idle(evidence, rank) else "busy at",
        )
    return None


def _is_idle(evidence: Evidence, rank: int) -> bool:
    return evidence.run.ranks[rank].is_idle is True


def _use_of_processor(evidence: Evidence, ranks: Iterable[int]) -> dict[str, list[int]]:
    """The ranks that computed when the run hung: they are to be left alone."""
    computing = [rank for rank in ranks if evidence.run.ranks[rank].is_idle is False]
    return {"computing": computing} if computing else {}


def _fewer(absent: list[int], call: Call) -> list[int]:
    """The smaller side is to be looked at; both sides if they are equal."""
    present = list(call.ops)
    if len(absent) == len(present):
        return sorted({*absent, *present})
    return sorted(absent if len(absent) < len(present) else present)


def _circle(evidence: Evidence, start: int) -> list[int]:
    """The ranks that wait for each other in a circle through this one."""
    paths, seen = [[start]], {start}
    while paths:
        path = paths.pop()
        for rank in evidence.waits_for(evidence.blocked[path[-1]]) if path[-1] in evidence.blocked else []:
            if rank == start:
                return sorted(path)
            if rank not in seen:
                seen.add(rank)
                paths.append([*path, rank])
    return []

"""Calls that a rank does not come to."""

from collections.abc import Iterator
from dataclasses import replace

from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, of_call, sites, wait_in, where
from rollcall.explain.matching import Call
from rollcall.explain.table import Op, Site
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.record.sites import waits_for_data


def incomplete_worlds(evidence: Evidence) -> Iterator[Finding]:
    """init_process_group that failed or hangs."""
    table, calls = evidence.table, evidence.calls
    stuck_in_init = table.is_one_of("init") & (table.is_blocked | table.has_failed)
    for call in calls.where(calls.any(stuck_in_init)):
        stuck = [op for op in call.ops.values() if op.op == "init" and (op.is_blocked or op.is_failed)]
        absent = [rank for rank in evidence.run.ranks if rank not in call.ops]
        never = (
            f"; {ranks_in_words(absent)} never called it" if absent else ", which waits for more ranks than there are"
        )
        message = f"{ranks_in_words(op.rank for op in stuck)} did not get through {where(stuck[0])}{never}"
        exits = tuple(site for rank in absent if (site := evidence.run.ranks[rank].exit_site) is not None)
        finding = of_call("world-incomplete", call, absent or [op.rank for op in stuck], message, stuck)
        yield replace(finding, sites=(*exits, *finding.sites))
        return


def missing_ranks(evidence: Evidence) -> Iterator[Finding]:
    """Collectives in which some ranks wait, and to which others never come."""
    calls = evidence.calls
    for call in calls.where(~calls.has_all & calls.any(evidence.table.is_blocked)):
        absent = [rank for rank in call.missing if rank in evidence.run.ranks]
        if absent and not all(evidence.has_ended(rank) for rank in absent):
            yield _explain(evidence, call, absent)
            return


def _explain(evidence: Evidence, call: Call, absent: list[int]) -> Finding:
    waiting = [call.ops[rank] for rank in call.blocked]
    message = wait_in(waiting)
    in_other_ops = [evidence.blocked[rank] for rank in absent if rank in evidence.blocked]
    if in_other_ops:
        return _explain_other_ops(evidence, call, absent, waiting, in_other_ops, message)
    if stalled := _stalled(evidence, absent):
        kind, place = stalled
        message += f"; {ranks_in_words(absent)} {_are(absent)} busy at {place}"
        return replace(of_call(kind, call, absent, message, waiting), sites=(place, *sites(waiting)))
    kind = {"new_group": "group-incomplete", "init": "world-incomplete"}.get(waiting[0].op, "missing-rank")
    return of_call(kind, call, absent, f"{message}; {ranks_in_words(absent)} never made this call", waiting)


def _explain_other_ops(
    evidence: Evidence, call: Call, absent: list[int], waiting: list[Op], in_other_ops: list[Op], message: str
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
    message += f", while {ranks_in_words(absent)} {_are(absent)} in {where(first)}"
    return of_call(kind, call, looked_at, message, [*waiting, *in_other_ops])


def _are(absent: list[int]) -> str:
    return "are" if len(absent) > 1 else "is"


def _stalled(evidence: Evidence, absent: list[int]) -> tuple[str, Site] | None:
    """What a missing rank does that is in no op and has not ended: the line of its stack."""
    for rank in absent:
        found = evidence.run.ranks[rank]
        if found.own_stack and not found.has_ended:
            is_input = waits_for_data(site.file for site in found.stack)
            return "input-stall" if is_input else "busy-rank", found.own_stack[0]
    return None


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

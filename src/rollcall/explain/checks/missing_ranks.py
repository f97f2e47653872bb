"""Calls that a rank does not come to."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rollcall.explain import source
from rollcall.explain.checks import ddp, p2p
from rollcall.explain.checks.deaths import was_stopped
from rollcall.explain.checks.misaddressed import misaddressed
from rollcall.explain.checks.p2p_mismatches import has_made_more
from rollcall.explain.checks.p2p_waits import polls
from rollcall.explain.ends import is_init_lost
from rollcall.explain.evidence import Evidence, Seen
from rollcall.explain.findings import Finding, in_ops, of_call, of_ops, sites, wait_in, where
from rollcall.explain.loading.load import Rank
from rollcall.explain.loading.table import Op, Site, Table
from rollcall.explain.matching import Call
from rollcall.explain.skipped_calls import first_skipped_call
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.record import ring_format
from rollcall.record.sites import saves_or_compiles


def incomplete_worlds(evidence: Evidence) -> Iterator[Finding]:
    """init_process_group that failed or hangs."""
    table, calls = evidence.table, evidence.calls
    stuck_in_init = table.is_one_of("init") & (evidence.is_stuck | table.has_failed)
    for call in calls.where(calls.any(stuck_in_init)):
        stuck = [op for op in call.ops.values() if op.op == "init" and (op.is_blocked or op.is_failed)]
        if all(_has_formed_one_since(evidence, op) or _is_one_too_many(evidence, op) for op in stuck):
            continue
        absent = [rank for rank in evidence.run.ranks if rank not in call.ops]
        is_lost = is_init_lost(call) and not _is_waited_for(evidence, stuck)
        if any(_has_fallen(evidence, rank) for rank in absent) or is_lost:
            return
        never = f"; {ranks_in_words(absent)} never called it" if absent else _why_not_through(call)
        message = f"{ranks_in_words(op.rank for op in stuck)} did not get through {where(stuck[0])}{never}"
        places = tuple(site for rank in absent if (site := _place_of(evidence.run.ranks[rank])) is not None)
        why = {} if absent or call.missing else {"astray": True}
        finding = of_call("world-incomplete", call, absent or [op.rank for op in stuck], message, stuck, **why)
        yield replace(finding, sites=(*places[:_FEW], *finding.sites))
        return


_FEW = 3  # lines: ranks that never came stand on the same few


def _has_formed_one_since(evidence: Evidence, failed: Op) -> bool:
    """Whether the program has handled the error, and formed a group in another way: with another backend, say."""
    later = (op for op in evidence.run.ranks[failed.rank].ops if op.entered_ns > failed.entered_ns)
    return any(op.op == "init" and op.completed_ns for op in later)


def _is_one_too_many(evidence: Evidence, failed: Op) -> bool:
    """Whether the rank has a group already: torch refuses another init_process_group then."""
    rank = evidence.run.ranks[failed.rank]
    made = [op for op in rank.ops if op.op == "init" and op.row < failed.row and not (op.is_failed or op.is_blocked)]
    destroyed = (event for event in rank.events if event.op == "destroy" and event.row < failed.row)
    return bool(made) and failed.is_failed and all(event.row < made[-1].row for event in destroyed)


def _is_waited_for(evidence: Evidence, stuck: list[Op]) -> bool:
    """Whether a rank that got through init_process_group waits in a later call for those alone that did not: then
    nobody has left, but they have not found each other."""
    lost = {op.rank for op in stuck}
    waited_for = [set(evidence.waits_for(op)) for op in evidence.held.values() if op.op != "init"]
    return any(ranks and ranks <= lost for ranks in waited_for)


def _why_not_through(call: Call) -> str:
    """All ranks of the run came to init_process_group."""
    if call.missing:
        return ", which waits for more ranks than there are"
    return ": all of them came, but did not find each other; the store may still have addresses of an earlier group"


def _place_of(rank: Rank) -> Site | None:
    """Where it exited, or where it is: the line of the program, if its stack has one."""
    return rank.exit_site or next(iter((*rank.own_stack, *rank.stack)), None)


def missing_ranks(evidence: Evidence) -> Iterator[Finding]:
    if (finding := evidence.once(_missing)) is not None:
        yield _with_alike(evidence, finding)


def _with_alike(evidence: Evidence, finding: Finding) -> Finding:
    """The same once more in other groups, as in each row of a mesh, is no other finding: all wait on one line for ranks
    that are in no op."""
    idle = set(evidence.run.ranks) - set(evidence.held)
    if finding.kind != "missing-rank" or not idle.issuperset(finding.ranks):
        return finding
    others = [call for call in _waiting_calls(evidence) if call.group.name != finding.group]
    others = [call for call in others if idle.issuperset(call.missing) and _is_on_lines(call, finding)]
    more = {rank for call in others for rank in call.missing if not evidence.has_ended(rank)} - set(finding.ranks)
    if not more:
        return finding
    groups = len({call.group.name for call in others})
    words = f"in {groups} more group{'s' * (groups > 1)}, ranks wait there for {ranks_in_words(more)}"
    return replace(finding, ranks=tuple(sorted({*finding.ranks, *more})), message=f"{finding.message}; {words}")


def _is_on_lines(call: Call, finding: Finding) -> bool:
    ops = call.ops.values()
    return {op.op for op in ops} == {finding.op} and all(op.site is None or op.site in finding.sites for op in ops)


def _missing(evidence: Evidence) -> Finding | None:
    """A collective in which some ranks wait, and to which others do not come."""
    found = None
    for call in _waiting_calls(evidence):
        absent = [rank for rank in call.missing if rank in evidence.run.ranks]
        if any(_has_fallen(evidence, rank) or evidence.run.ranks[rank].exit_code == 0 for rank in absent):
            continue  # that it does not come follows from that
        if evidence.failing.intersection(call.ops):
            continue  # this call is not part of the program's way
        if all(rank in evidence.held and evidence.held[rank].op == "init" for rank in absent):
            continue  # why they did not get through that is told of it
        absent = [rank for rank in absent if not evidence.has_ended(rank) or rank in evidence.held]
        if set(absent) & set(ddp.without_gradients(evidence, call)):
            continue  # their backward never averages these gradients
        if absent and (finding := _explain(evidence, call, absent)) is not None:
            if not _waits_for_others(evidence, call, absent):
                return finding
            found = found or finding
    return found


def _waiting_calls(evidence: Evidence) -> Iterable[Call]:
    """Returns them in the order in which they began; with several groups, first those in which a rank has chosen
    another group."""
    calls = evidence.calls
    are_waiting = ~calls.has_all & calls.any(_is_waiting(evidence))
    waiting = calls.where(are_waiting)
    if len(np.unique(calls.groups[are_waiting])) < 2:
        return waiting
    return sorted(waiting, key=lambda call: not _has_other_group(evidence, call))


def _has_other_group(evidence: Evidence, call: Call) -> bool:
    """Whether a rank that does not come is in a call of another group, on the line on which the others wait for it:
    there they went different ways."""
    sites = {op.site for op in call.ops.values() if op.site is not None}
    absent = [evidence.held[rank] for rank in call.missing if rank in evidence.held]
    return any(op.site in sites and op.group != call.group and not op.is_point_to_point for op in absent)


def _waits_for_others(evidence: Evidence, call: Call, absent: list[int]) -> bool:
    """Whether the missing ranks wait in a circle that nobody in this call is part of: the circle explains them."""
    chain = evidence.ways_on(absent)
    return all(rank in evidence.held for rank in chain) and not set(chain) & set(call.ops)


def idle_peers(evidence: Evidence) -> Iterator[Finding]:
    """Sends and receives that wait, in the end, for a rank that is in no op. If a collective waits for it, too, then
    that is what is told."""
    waiting = [op for op in evidence.stuck.values() if op.is_point_to_point and evidence.waits_for(op)]
    if not waiting or evidence.once(_missing) is not None:
        return
    in_circles: set[int] = set()  # from these ranks, no way leads to one that is in no op
    for op in sorted(waiting, key=lambda op: op.entered_ns):
        if op.rank in in_circles:
            continue
        chain = evidence.ways_on(evidence.waits_for(op))
        idle = [rank for rank in chain if rank not in evidence.blocked and not evidence.has_ended(rank)]
        if not idle:
            in_circles.update(chain)
            continue
        if any(_has_fallen(evidence, rank) or polls(evidence, rank) for rank in chain):
            continue
        if seen := evidence.seen_now(idle[0]):
            direct = [each for each in waiting if each.peer == idle[0]] or [op]
            kind, words = _activity(evidence, idle[0], seen)
            message = f"{wait_in(direct)}; rank {idle[0]} is {words} {seen.site}"
            finding = of_ops(kind, idle[:1], message, direct, **at_work(evidence, idle[:1]))
            yield replace(finding, sites=(seen.site, *finding.sites))
            return


def _is_waiting(evidence: Evidence) -> NDArray[np.bool_]:
    """Ops that are stuck, or that failed since a rank did not come: those of a barrier with a timeout. If a rank has
    died by itself, ops fail for that."""
    table = evidence.table
    if evidence.died_by_themselves:
        return evidence.is_stuck
    gave_up = table.has_failed & ((table.issued_ns > 0) | (table.op == ring_format.OP["barrier"]))
    if evidence.run.cut_ns:
        gave_up &= ~_went_on(table)
    return np.asarray(evidence.is_stuck | gave_up)


def _went_on(table: Table) -> NDArray[np.bool_]:
    """Per row: its rank has completed another op since. In a running job, the program has handled what failed there,
    and nobody waits in it."""
    went_on = np.zeros(len(table), dtype=np.bool_)
    is_done = (table.completed_ns > 0) & ~table.is_event
    for start, end in table.spans.values():
        done = np.flatnonzero(is_done[start:end])
        went_on[start : start + (done[-1] if len(done) else 0)] = True
    return went_on


def _has_fallen(evidence: Evidence, number: int) -> bool:
    """A rank that died, was stopped or was cut off, or that waits somewhere with an error of its own."""
    rank = evidence.run.ranks[number]
    is_lost = any(number in lost.ranks for lost in evidence.run.lost) or number in evidence.failing
    return is_lost or number in evidence.died_by_themselves or was_stopped(evidence, rank)


def _explain(evidence: Evidence, call: Call, absent: list[int]) -> Finding | None:
    """What the missing ranks do instead; None if another finding tells why they do not come."""
    waiting = [op for op in call.ops.values() if op.is_blocked or op.is_failed]
    chain = evidence.ways_on(absent)
    in_ops = [evidence.held[rank] for rank in chain if rank in evidence.held]
    if _have_reasons(evidence, call, in_ops):
        return None
    in_other_ops = [op for op in in_ops if op.rank in absent]
    if any(ddp.is_in_forward(evidence, rank) for rank in chain) and evidence.once(ddp.uneven) is not None:
        return None
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
        is_too_many = kind == "missing-rank" and len(call.ops) < len(idle)  # most ranks are past it
        looked_at = list(call.ops) if is_too_many else idle
        finding = of_call(kind, call, looked_at, message, waiting, **at_work(evidence, idle))
        return replace(finding, sites=(place, *sites([*waiting, *between])))
    kind = {"new_group": "group-incomplete", "init": "world-incomplete"}.get(waiting[0].op, "missing-rank")
    what = f"{_are(idle)} in no op" if between else "never made this call"
    return of_call(kind, call, idle, f"{message}; {ranks_in_words(idle)} {what}", [*waiting, *between])


def _have_reasons(evidence: Evidence, call: Call, in_ops: list[Op]) -> bool:
    """Whether one of these ranks is stuck for a reason of its own: in a call on which its ranks disagree, in a receive
    of what was sent under another tag or to another rank, in a circle of sends and receives; or, by their dumps, in an
    op that the device does not end though all are there, or for which a rank without a dump is missing."""
    told = evidence.once(misaddressed)
    told_rows = set(told.evidence["rows"]) if told else set()
    in_circle = {rank for circle in evidence.once(p2p.circles) for rank in circle.ranks}
    others = [op for op in in_ops if op.rank not in call.ops and not op.is_point_to_point]
    return any(_disagree(evidence, op) for op in others) or any(
        op.row in told_rows or op.rank in in_circle or _waits_outside(evidence, op) for op in in_ops
    )


def _waits_outside(evidence: Evidence, op: Op) -> bool:
    """Whether it waits for no rank of which there is a dump."""
    return evidence.run.is_from_dumps and evidence.run.ranks.keys().isdisjoint(evidence.waits_for(op))


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
    is_one_place = len({where(op) for op in in_other_ops}) == 1
    of_groups = _of_groups(waiting[0], first)
    at_one_place = f"{ranks_in_words(absent)} {_are(absent)} in {where(first)}{of_groups[1]}"
    doing = (at_one_place if is_one_place else in_ops(in_other_ops)) + _for_one_rank(in_other_ops)
    ways_out: tuple[Site, ...] = ()
    circle = _circle(evidence, first.rank)
    left = _left_loop(evidence, circle) if first.group != call.group else None
    if _comes_later(evidence, waiting[0], first):  # told of the call that comes before
        before = evidence.calls.of(first)
        looked_at = _fewer(before.missing, before) if before else absent
    elif _comes_later(evidence, first, waiting[0]):
        looked_at = _fewer([op.rank for op in in_other_ops if op.op == "new_group"], call)
    elif waiting[0].op == "new_group":
        kind = "group-incomplete"
    elif first.op == "new_group":
        kind, looked_at = "group-incomplete", evidence.waits_for(first) or call.blocked
    elif first.is_point_to_point:
        kind, looked_at = "p2p-against-collective", _sides(evidence, absent, call, in_other_ops)
    elif left is not None:
        inner, outer = left
        looked_at, in_other_ops = _of_other_turns(evidence, inner, outer), [outer, inner]
        ways_out = source.ways_out_of_loop(outer.site, inner.site)
    elif first.group != call.group and circle:
        kind = "cross-group-deadlock"
        in_other_ops = [evidence.held[rank] for rank in circle]
        is_one_line = len({op.site for op in in_other_ops}) == 1  # then they take the groups in another order
        is_between_two = set(first.group.ranks) == set(call.group.ranks) or (
            _has_other_group(evidence, call) and not is_one_line
        )
        looked_at = _fewer(absent, call) if is_between_two else _other_choices(evidence, in_other_ops) or circle
    message = f"{wait_in(waiting)}{of_groups[0]}, while {doing}"
    if left is not None:
        message += f"; rank {left[1].rank} is past the loop in which rank {left[0].rank} waits for it"
    since = first_skipped_call(evidence, call, absent[0], waiting[0].rank) or ()
    if since and since[0].op != "new_group" and kind == "group-incomplete":  # it went wrong before a group was made
        kind, looked_at = "missing-rank", _fewer(absent, call)
    finding = of_call(kind, call, looked_at, message, [*since, *waiting, *in_other_ops])
    return replace(finding, sites=(*finding.sites, *ways_out))


def _of_groups(one: Op, other: Op) -> tuple[str, str]:
    """Tells two calls apart that read alike."""
    if one.group == other.group or where(one) != where(other):
        return "", ""
    return f" of group {one.group.name}", f" of group {other.group.name}"


def _for_one_rank(ops: list[Op]) -> str:
    """The rank that all of these sends and receives wait for."""
    peers = {op.peer for op in ops if op.is_point_to_point}
    is_known = len(peers) == 1 and min(peers) >= 0 and all(op.is_point_to_point for op in ops)
    return f" for rank {peers.pop()}" if is_known else ""


def _left_loop(evidence: Evidence, circle: list[int]) -> tuple[Op, Op] | None:
    """Of ranks that wait for each other: the op of one that is in a loop, and of one that it waits for, which has made
    this call in earlier turns and is past the loop. They do not take their groups in another order: one of them has
    made another number of turns."""
    table = evidence.table
    held = [evidence.held[rank] for rank in circle]
    for inner, outer in itertools.permutations(held[:_FEW_IN_CIRCLE], 2):
        if outer.rank not in evidence.waits_for(inner) or inner.site is None or outer.site is None:
            continue
        is_same = (table.site == table.site[inner.row]) & (table.group == table.group[inner.row])
        if (is_same & (table.rank == outer.rank)).any() and source.is_outside_loop(outer.site, inner.site):
            return inner, outer
    return None


_FEW_IN_CIRCLE = 8  # ranks: each pair is looked up in the source


def _of_other_turns(evidence: Evidence, inner: Op, outer: Op) -> list[int]:
    """Who has made another number of turns than ranks of other groups on the same line: the one that left the loop, if
    they have made as many as the one inside, or the one inside, if nobody has. Both, if nobody else was there."""
    table = evidence.table
    turns = np.bincount(table.rank[(table.site == table.site[inner.row]) & table.is_collective])
    others = np.delete(turns, [rank for rank in (inner.rank, outer.rank) if rank < len(turns)])
    others = others[others > 0]
    if not len(others):
        return sorted([inner.rank, outer.rank])
    return [outer.rank if others.max() >= turns[inner.rank] else inner.rank]


def _other_choices(evidence: Evidence, ops: list[Op]) -> list[int]:
    """The rank that has chosen another group than the others on the line of one of these ops: in the same turn, the
    groups of all ranks have no rank in common, or are the same, but its own overlaps with those of most others. None,
    if no rank stands out."""
    collectives = [op for op in ops if not op.is_point_to_point]
    for op in sorted(collectives, key=lambda op: op.entered_ns):
        groups = _groups_in_turn(evidence, op)
        overlaps = {
            rank: sum(other != mine and not set(mine).isdisjoint(other) for other in groups.values())
            for rank, mine in groups.items()
        }
        (first, most), *rest = sorted(overlaps.items(), key=lambda item: -item[1])
        if rest and most > max(rest[0][1], 1):
            return [first]
    return []


def _groups_in_turn(evidence: Evidence, op: Op) -> dict[int, tuple[int, ...]]:
    """By rank: the group of its n-th collective on the line of an op, which is the n-th of its own rank."""
    table = evidence.table
    is_there = (table.site == table.site[op.row]) & table.is_collective
    rows = {rank: low + np.flatnonzero(is_there[low:high]) for rank, (low, high) in table.spans.items()}
    turn = int(np.searchsorted(rows[op.rank], op.row))
    return {rank: tuple(table.get(found[turn]).group.ranks) for rank, found in rows.items() if turn < len(found)}


def _comes_later(evidence: Evidence, group: Op, other: Op) -> bool:
    """Whether a group is made after the other op: on a line behind it, or by a few ranks in the next turn of a loop,
    while the other is still in a loop inside. Then it is that op that was left out, and not the making of the group."""
    call = evidence.calls.of(group)
    if group.op != "new_group" or other.is_point_to_point or not group.site or not other.site or call is None:
        return False
    table = evidence.table
    turns = int(((table.rank == group.rank) & (table.site == table.site[group.row])).sum())
    is_next_turn = turns > 1 and len(call.ops) <= len(call.missing)
    return source.is_past(group.site, other.site) or (is_next_turn and source.is_outside_loop(group.site, other.site))


def _sides(evidence: Evidence, absent: list[int], call: Call, in_ops: list[Op]) -> list[int]:
    """The smaller side; of that, the ranks of the sends and receives that wait for a rank on the other side: the others
    wait for them. If the sides are equal, both ranks of each. But a rank between a send to it and a receive from it,
    like a stage that left its loop too early, explains both, which are different calls and wrong by chance alone. So
    does a rank that has left out its side of them."""
    looked_at = _fewer(absent, call)
    meeting = [op for op in in_ops if op.peer in call.ops]
    awaited = {op.peer for op in meeting}
    if meeting and all(_has_left_out(evidence, op, call) for op in meeting):
        return sorted(awaited)
    if len(awaited) == 1 and {op.op for op in meeting} >= {"send", "recv"}:
        return sorted(awaited)
    is_tie = len(looked_at) > max(len(absent), len(call.ops))
    if not meeting:
        return looked_at
    if set(looked_at) <= set(call.ops):
        return sorted({op.peer for op in meeting})
    return sorted({rank for op in meeting for rank in ((op.rank, op.peer) if is_tie else (op.rank,))})


def _has_left_out(evidence: Evidence, op: Op, call: Call) -> bool:
    """Whether the rank that a send or receive waits for has made fewer of the ops that met this line before than all
    others that came to the call, and the rank of the op has not made more on its own line than they."""
    table, rows = evidence.table, evidence.pairs.rows
    same = (table.rank[rows] == op.rank) & (table.site[rows] == table.site[op.row]) & (table.peer[rows] == op.peer)
    partners = evidence.pairs.partner[rows[same]]
    partners = partners[partners >= 0]
    if not len(partners):
        return False
    is_such = np.isin(table.site[rows], table.site[partners]) & (table.op[rows] == table.op[partners[0]])
    counts = np.bincount(table.rank[rows[is_such]], minlength=max(call.ops) + 1)
    others = [counts[rank] for rank in call.ops if rank != op.peer and counts[rank]]
    return bool(others) and bool(counts[op.peer] < min(others)) and not has_made_more(evidence, op)


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
        if _has_gone_on(evidence, rank, waiting):
            return "missing-rank", seen.site, "past this call already, at"
        kind, words = _activity(evidence, rank, seen)
        return kind, seen.site, words
    return None


def _activity(evidence: Evidence, rank: int, seen: Seen) -> tuple[str, str]:
    """What a rank does that is in no op: the kind of finding, and how that is told."""
    if seen.is_input:
        return "input-stall", "waiting for data at"
    is_idle = evidence.run.ranks[rank].is_idle is True
    return "busy-rank", "stuck, without using the processor, at" if is_idle else "busy at"


def _has_gone_on(evidence: Evidence, rank: int, waiting: list[Op]) -> bool:
    """Whether it has left out the call that they are in. It has begun a later async op on the same thread, which they
    have not come to, and only polls that one; or it has begun more forwards of its DDP module than they, and waits for
    them in that."""
    forwards = evidence.forwards
    if ddp.is_in_forward(evidence, rank) and any(forwards[rank] > forwards[op.rank] for op in waiting):
        return True
    return polls(evidence, rank, waiting)


def at_work(evidence: Evidence, ranks: Iterable[int]) -> dict[str, list[int]]:
    """The ranks that computed when the run hung, and those that waited in a save or a compile: for a disk, or for a
    compiler on another machine. They are to be left alone."""
    found = [evidence.run.ranks[rank] for rank in ranks]
    computing = [rank.number for rank in found if rank.is_idle is False]
    saving = [rank.number for rank in found if saves_or_compiles(site.file for site in rank.stack)]
    saving = [rank for rank in saving if rank not in computing]
    return {why: at_work for why, at_work in (("computing", computing), ("saving", saving)) if at_work}


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
        for rank in evidence.waits_for(evidence.held[path[-1]]) if path[-1] in evidence.held else []:
            if rank == start:
                return sorted(path)
            if rank not in seen:
                seen.add(rank)
                paths.append([*path, rank])
    return []

"""Ranks that are in the same call with different ops or arguments."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain import exchanges, parallel_groups, source
from rollcall.explain.checks import ddp
from rollcall.explain.checks.call_order import permutation
from rollcall.explain.effects import effect_of_call
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Effect, Finding, each, of_call, of_ops, sites, where
from rollcall.explain.loading.table import Op, Site
from rollcall.explain.matching import Call, deviants
from rollcall.explain.skipped_calls import first_skipped_call, has_skipped
from rollcall.protocol.rank_ranges import ranks_in_words

# What must be the same on all ranks, the one that explains most first: kind of the finding, name, value.
_ALIKE: tuple[tuple[str, str, Callable[[Op], Any]], ...] = (
    ("mismatched-splits", "number of objects", lambda op: op.signature.get("objects", 0)),
    ("mismatched-reduce-op", "reduce op", lambda op: op.reduce),
    ("mismatched-root", "root", lambda op: op.peer),
    ("mismatched-dtype", "dtype", lambda op: tuple(op.signature.get("dtypes", ()))),
    ("mismatched-shape", "shape", lambda op: str(op.signature.get("shapes", ()))),
    ("mismatched-splits", "splits", lambda op: str(op.signature.get("splits", ()))),
)


def mismatches(evidence: Evidence) -> Iterator[Finding]:
    """The first call that differs: the calls after it are out of step, and differ for that reason alone."""
    table, calls = evidence.table, evidence.calls
    columns = (table.op, table.reduce, table.peer, table.signature)
    differing = calls.differ_in(*columns)
    differing &= ~exchanges.that_match(table, calls, differing)
    for number in calls.unlike(differing, *columns, table.site):
        call = calls.get(number)
        if any(op.is_blocked for rank, op in call.ops.items() if rank in evidence.failing):
            return  # an error has led a rank there
        finding = permutation(evidence, number) or _mismatch(evidence, call)
        if finding is not None and set(finding.ranks) & set(ddp.without_gradients(evidence, call)):
            return  # their backward never averaged these gradients
        if finding is not None and ddp.explains(evidence, call):
            return
        if finding is not None:
            finding = _since_skipped_call(evidence, call, finding)
            finding = _with_count(evidence, finding, number, differing)
            yield replace(finding, since_ns=_differs_since_ns(call), effect=effect_of_call(evidence, call))
            return
    yield from _unlike_lines(evidence)


_IN_STEP = ("order-swap", "order-inversion", "group-incomplete", "ddp-model-mismatch")  # say more than a missing call


def _since_skipped_call(evidence: Evidence, call: Call, finding: Finding) -> Finding:
    """If the rank has made a call too many or too few before, and this one differs only for that: which one."""
    other = next((rank for rank in call.ops if rank not in finding.ranks), None)
    other = next((rank for rank in finding.ranks[1:]), None) if other is None else other
    if finding.kind in _IN_STEP or other is None:
        return finding
    if (ops := first_skipped_call(evidence, call, finding.ranks[0], other)) is not None:
        message = f"{finding.message}; they are out of step since {where(ops[0])} and {where(ops[1])}"
        return replace(finding, kind="missing-rank", message=message, sites=(*sites(ops), *finding.sites))
    if has_skipped(evidence, call, finding.ranks[0], other):
        message = f"{finding.message}; {ranks_in_words(finding.ranks)} left out what the others make in this call"
        return replace(finding, kind="missing-rank", message=message)
    return finding


def _unlike_lines(evidence: Evidence) -> Iterator[Finding]:
    """A call that all ranks have come to, and in which all of them are stuck, from lines of which one comes after the
    other: what differs is not recorded, as with a barrier and a monitored_barrier."""
    table, calls = evidence.table, evidence.calls
    are_stuck = calls.has_all & calls.all(evidence.is_stuck)
    for call in calls.where(are_stuck & calls.differ_in(table.site) & ~calls.any(table.site == 0)):
        odd = deviants({rank: op.site for rank, op in call.ops.items()})
        by_rank = each({rank: f"in {where(op)}" for rank, op in call.ops.items()})
        message = f"all ranks are stuck in call {call.seq} of group {call.group.name}, on different lines ({by_rank})"
        if any(_are_other_calls(evidence, mine, theirs) for mine, theirs in _pairs_of_ops(call, odd)):
            finding = of_call("missing-rank", call, odd, message, _some(call, odd))
            yield replace(finding, since_ns=_differs_since_ns(call))
            return


def _with_count(evidence: Evidence, finding: Finding, number: int, differing: NDArray[np.bool_]) -> Finding:
    """How many calls of the same line differ: the first of them stands for all."""
    calls, table = evidence.calls, evidence.table
    first = calls.rows[calls.starts]
    same = (calls.groups == calls.groups[number]) & (table.site[first] == table.site[first[number]])
    count = int((differing & same).sum())
    again = f"; so do the ranks in {count:,} calls of this line" if count > 1 and finding.kind in _REPEATED else ""
    return replace(finding, message=finding.message + again)


# Kinds after which ranks continue in step, so that later calls of the line differ for the same reason.
_REPEATED = ("mismatched-reduce-op", "mismatched-root", "mismatched-dtype", "mismatched-shape", "mismatched-splits")


def _differs_since_ns(call: Call) -> int:
    """When the first rank came that does not fit those before it."""
    first = min(call.ops.values(), key=lambda op: op.entered_ns)
    others = [op for op in call.ops.values() if _identity(op) != _identity(first)]
    return min((op.entered_ns for op in others), default=first.entered_ns)


def _identity(op: Op) -> tuple[Any, ...]:
    return op.op, op.reduce, op.peer, str(op.signature), op.site


def _mismatch(evidence: Evidence, call: Call) -> Finding | None:
    names = {rank: op.op for rank, op in call.ops.items()}
    if len(set(names.values())) > 1:
        odd = parallel_groups.narrow_down(evidence, call, deviants(names))
        by_rank = each({rank: f"in {where(op)}" for rank, op in call.ops.items()})
        message = f"call {call.seq} of group {call.group.name} is not the same on all ranks ({by_rank})"
        finding = of_call(_kind_of_difference(call, odd), call, odd, message, _some(call, odd), seen=names)
        return replace(finding, sites=(*finding.sites, *_ways_out(call, odd)))
    op = next(iter(call.ops.values()))
    known = {rank: op for rank, op in call.ops.items() if op.signature}  # else its ring had no room for it
    for kind, noun, read in _ALIKE:
        values = {rank: read(op) for rank, op in known.items()}
        if _differ(noun, values) and _must_agree(kind, call):
            is_exchange = op.op == "all_to_all" and noun in ("shape", "splits")
            odd = _ranks_of_bad_transfers(evidence, call) if is_exchange else _odd_ones(evidence, call, values, read)
            if any(_are_other_calls(evidence, mine, theirs) for mine, theirs in _pairs_of_ops(call, odd)):
                by_rank = each({rank: f"in {where(op)}" for rank, op in call.ops.items()})
                message = f"call {call.seq} of group {call.group.name} is not the same on all ranks ({by_rank})"
                finding = of_call("missing-rank", call, odd, message, _some(call, odd), values=values)
                return replace(finding, sites=(*finding.sites, *_ways_out(call, odd)))
            if any(_is_swapped(mine, theirs) for mine, theirs in _pairs_of_ops(call, odd)):
                kind = "order-swap"
            what = {"new_group": "members", "ddp": "parameters"}.get(op.op, noun)
            details = exchanges.in_words(call, _bad_transfers(call)) if is_exchange else each(values)
            message = f"in {where(op)} the ranks differ in their {what} ({details})"
            kind = {"new_group": "group-incomplete", "ddp": "ddp-model-mismatch"}.get(op.op, kind)
            return of_call(kind, call, odd, message, _some(call, odd), values=values)
    return None


def _differ(noun: str, values: dict[int, Any]) -> bool:
    """In gather_object and scatter_object_list only the root has a list, whose length older rings have recorded. Of
    another number of tensors, the shapes tell."""
    different = set(values.values())
    if noun == "dtype" and len(set(map(len, different))) > 1:
        return False
    return len(different - {0} if noun == "number of objects" else different) > 1


def _are_other_calls(evidence: Evidence, mine: Op, theirs: Op) -> bool:
    """Whether two ranks that differ in an argument are in different calls of the program: on lines of which one comes
    after the other, or one of them past a loop that the other is in. Then one of them has left a call out."""
    if mine.op in ("new_group", "ddp"):  # whatever the line, ranks make other groups or modules: that says more
        return False
    divergence = source.divergence_of(mine.site, theirs.site) if mine.site and theirs.site else None
    is_in_order = divergence is not None and source.relation(divergence) in ("after", "before")
    return is_in_order or _has_left_loop(evidence, mine, theirs)


def _has_left_loop(evidence: Evidence, mine: Op, theirs: Op) -> bool:
    """Whether one of two ranks is past a loop that the other is in, and in which it made this call before."""
    for inner, outer in ((theirs, mine), (mine, theirs)):
        if inner.site is None or outer.site is None or inner.site == outer.site:
            continue
        table = evidence.table
        before = (
            (table.rank == outer.rank) & (table.site == table.site[inner.row]) & (table.group == table.group[inner.row])
        )
        if before.any() and source.is_outside_loop(outer.site, inner.site):
            return True
    return False


def _ways_out(call: Call, odd: list[int]) -> tuple[Site, ...]:
    """Where one of two ranks may have left a loop that the other is in."""
    for mine, theirs in _pairs_of_ops(call, odd):
        if found := source.ways_out_of_loop(mine.site, theirs.site) or source.ways_out_of_loop(theirs.site, mine.site):
            return found
    return ()


def _some(call: Call, odd: list[int]) -> list[Op]:
    """The ops of the odd ranks first, then those of the others."""
    return [call.ops[rank] for rank in odd] + [op for rank, op in call.ops.items() if rank not in odd]


def _odd_ones(evidence: Evidence, call: Call, values: dict[int, Any], read: Callable[[Op], Any]) -> list[int]:
    """The ranks that differ from the majority; if there is none, those that differ from earlier calls on this line."""
    odd = parallel_groups.narrow_down(evidence, call, deviants(values))
    if len(odd) < len(values) or len(call.group.ranks) < 3:
        return odd
    table = evidence.table
    sites = list({int(table.site[op.row]) for op in call.ops.values()})
    before = np.flatnonzero(np.isin(table.site, sites) & (table.seq < call.seq) & ~table.is_event)[-_PRECEDENTS:]
    usual = Counter(read(table.get(row)) for row in before).most_common(1)
    if not usual:
        return odd
    unusual = [rank for rank, value in values.items() if value != usual[0][0]]
    return unusual if 0 < len(unusual) < len(values) else odd


_PRECEDENTS = 64  # ops: the newest turns of a loop; older ones may have been of another phase of the program


def _must_agree(kind: str, call: Call) -> bool:
    """all_to_all may have different sizes on each rank, if each rank expects what the other sends; all_gather on a GPU,
    if all ranks expect them alike."""
    op = next(iter(call.ops.values()))
    if op.op == "all_to_all" and kind in ("mismatched-shape", "mismatched-splits"):
        is_split = any(any((op.signature.get("splits") or ())[1:3]) for op in call.ops.values())
        # With splits of their own, ranks have different shapes, and rightly so.
        return (kind == "mismatched-splits" or not is_split) and bool(_bad_transfers(call))
    if op.op == "all_gather" and op.signature.get("device") == "cuda" and kind == "mismatched-shape":
        return any(not _is_expected(call, rank) for rank in call.ops)
    return True


def _is_expected(call: Call, rank: int) -> bool:
    """Whether all ranks have room for just what this rank gives: nccl gathers tensors of different sizes, too."""
    given = call.ops[rank].signature.get("shapes")
    place = call.group.ranks.index(rank)
    rooms = [(op.signature.get("splits") or [[]])[0] for op in call.ops.values()]
    return all(place < len(room) and [room[place]] == given for room in rooms)


def _ranks_of_bad_transfers(evidence: Evidence, call: Call) -> list[int]:
    """The rank that takes part in most of the transfers that do not match, in this call and those of its line that
    follow, or that makes the call on another line than the others; all of this call's if none stands out."""
    here = {rank for transfer in _bad_transfers(call) for rank in transfer}
    transfers = [transfer for each in _same_line(evidence, call) for transfer in _bad_transfers(each)]
    counts = Counter(rank for transfer in transfers for rank in set(transfer) & here)
    (first, most), *rest = counts.most_common() or [(-1, 0)]
    if len(call.group.ranks) > 2 and rest and most > rest[0][1]:
        return [first]
    elsewhere = [rank for rank in deviants({rank: op.site for rank, op in call.ops.items()}) if rank in counts]
    return elsewhere if len(elsewhere) == 1 else sorted(counts)


def _same_line(evidence: Evidence, call: Call) -> list[Call]:
    """A call, and the next ones that all its ranks make on its lines."""
    number = evidence.calls.number_of(next(iter(call.ops.values()))) or 0
    following = [evidence.calls.get(each) for each in range(number, min(number + _FOLLOWING, len(evidence.calls)))]
    lines = {rank: op.site for rank, op in call.ops.items()}
    return [each for each in following if {rank: op.site for rank, op in each.ops.items()} == lines]


_FOLLOWING = 64  # calls: some turns of a loop, as many as one rank can be ahead with async ops


def _bad_transfers(call: Call) -> list[tuple[int, int]]:
    """Sender and receiver of what has another size than the receiver expects."""
    members = list(call.group.ranks)
    sent: dict[tuple[int, int], Any] = {}
    expected: dict[tuple[int, int], Any] = {}
    for rank, op in call.ops.items():
        given, taken = exchanges.sizes_of(op.signature, len(members))
        sent.update({(rank, other): size for other, size in zip(members, given, strict=False)})
        expected.update({(other, rank): size for other, size in zip(members, taken, strict=False)})
    return [transfer for transfer in sent if transfer in expected and sent[transfer] != expected[transfer]]


def _kind_of_difference(call: Call, odd: list[int]) -> str:
    """Ranks are in different ops: the kind depends on where in the source the odd ranks went another way."""
    for mine, theirs in _pairs_of_ops(call, odd):
        if mine.op == theirs.op:
            continue
        if _is_swapped(mine, theirs) or _is_turn_of_loop(mine, theirs):
            return "order-swap"
        divergence = source.divergence_of(mine.site, theirs.site) if mine.site and theirs.site else None
        if divergence and source.relation(divergence) in ("after", "before"):
            return "missing-rank"
    return "mismatched-op"


def _pairs_of_ops(call: Call, odd: list[int]) -> Iterator[tuple[Op, Op]]:
    """Pairs of an odd rank's op and another rank's; of all ranks, if all are odd."""
    others = [rank for rank in call.ops if rank not in odd] or odd
    return ((call.ops[rank], call.ops[other]) for rank in odd[:_FEW] for other in others[:_FEW] if rank != other)


_FEW = 8  # ranks of each side: all of a side stand on the same few lines, and each pair is looked up in the source


def _is_swapped(mine: Op, theirs: Op) -> bool:
    """Whether each of two ranks would make the other's call later: the order differs, not the calls."""
    if mine.site is None or theirs.site is None:
        return False
    divergence = source.divergence_of(mine.site, theirs.site)
    if divergence is None:
        return False
    both_come_later = source.calls_later(divergence.file, divergence.mine, divergence.theirs) and source.calls_later(
        divergence.file, divergence.theirs, divergence.mine
    )
    return source.relation(divergence) == "exclusive" and (both_come_later or source.is_choice_of_loop(divergence))


def _is_turn_of_loop(mine: Op, theirs: Op) -> bool:
    """Whether both ranks are on the same line of a loop, and the loop decides which call comes first."""
    if mine.site is None or theirs.site is None:
        return False
    divergence = source.divergence_of(mine.site, theirs.site)
    is_same = divergence is not None and source.relation(divergence) == "same"
    return is_same and source.is_turn_of_loop(mine.site, theirs.site)


def non_member_calls(evidence: Evidence) -> Iterator[Finding]:
    """Ops on a group by ranks that are not in it: torch ignores them."""
    found = evidence.table.where(evidence.table.is_non_member & ~evidence.table.is_event)
    if found:
        first = found.first()
        same = sorted({op.rank for op in found if op.site == first.site})
        message = f"{ranks_in_words(same)} called {where(first)} without being in its group"
        effect: Effect = "stopped" if any(_failed_on_no_result(evidence, rank) for rank in same) else "advice"
        yield replace(of_ops("non-member-call", same, message, [first]), effect=effect)


def _failed_on_no_result(evidence: Evidence, number: int) -> bool:
    """Whether a rank used what such a call returns: None, and no handle."""
    rank = evidence.run.ranks[number]
    is_none_error = rank.error.partition(":")[0] in ("AttributeError", "TypeError")
    return is_none_error and rank.last is not None and rank.last.is_non_member


def concurrent_calls(evidence: Evidence) -> Iterator[Finding]:
    """One group used by several threads, in a different order on different ranks. The first such call is told; any of
    them may have stopped the run, as the first may have carried as many bytes on all ranks by chance."""
    table, calls = evidence.table, evidence.calls
    candidates = calls.differ_in(table.site) & calls.any(table.thread > 0) & ~calls.any(table.site == 0)
    unlike = (calls.get(number) for number in calls.unlike(candidates, table.site, table.thread, table.signature))
    disordered = [call for call in unlike if _is_disordered(evidence, call)]
    if disordered:
        call = disordered[0]
        places = {rank: op.site for rank, op in call.ops.items()}
        message = f"group {call.group.name} is used by several threads at once, and the order differs between ranks"
        threads = {"threads": {rank: op.thread for rank, op in call.ops.items()}}
        finding = of_call("concurrent-calls", call, deviants(places), message, call.ops.values(), **threads)
        has_stopped = any(effect_of_call(evidence, each) == "stopped" for each in disordered)
        yield replace(finding, effect="stopped" if has_stopped else effect_of_call(evidence, call))


def _is_disordered(evidence: Evidence, call: Call) -> bool:
    """Whether some rank makes the calls of these lines from different threads: then their order is a matter of chance.
    A thread of autograd alone does not disturb it: it works while the main thread waits for it."""
    table = evidence.table
    op = next(iter(call.ops.values()))
    sites = [int(table.site[each.row]) for each in call.ops.values()]
    near = (table.group == table.group[op.row]) & np.isin(table.site, sites) & ~table.is_event
    near &= np.abs(table.seq.astype(np.int64) - call.seq) <= _NEAR
    threads: dict[tuple[int, int], int] = {}  # by rank and line
    for row in np.flatnonzero(near).tolist():
        threads[int(table.rank[row]), int(table.site[row])] = int(table.thread[row])
    return any(
        thread != other
        for (rank, site), thread in threads.items()
        for (other_rank, other_site), other in threads.items()
        if rank == other_rank and site != other_site
    )


_NEAR = 8  # calls; threads that share a group are not further apart than the ops that are in flight

"""Ranks that keep the others waiting."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.checks import gpus
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, of_ops
from rollcall.explain.loading.table import Op
from rollcall.explain.waits import blocked_since_ns, is_setup
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.record import ring_format

_ENOUGH_CALLS = 5  # fewer delays are events, such as a checkpoint or a rebuilt cache, and no habit
# Of all delays: if a few ranks do not account for most of them, all ranks are uneven by chance.
_MOST_OF_IT = 0.7
# Share of the run, and seconds: less than a fifth is not worth a search, and a run of a second has no steady pace yet.
_NOTABLE, _NOTABLE_S = 0.2, 0.3
# On a busy machine, a run may lose so many seconds to one rank by chance, wherever that rank is: then more delays are
# needed.
_CHANCE_S, _NO_CHANCE_CALLS = 0.5, 50


def stragglers(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that cost the others a good part of the run: again and again, or because they waited for their data. What
    dumps tell of the devices counts for more than what hosts asked for."""
    if evidence.run.is_rehearsed:
        return
    if evidence.device is not None and evidence.device.run.has_device_times:
        evidence = evidence.device
    waits = evidence.waits
    own_s = waits.own_delays_s
    ranks = _slowest(evidence, own_s)
    rank = ranks[0]
    saved_s = waits.saved_without(ranks)
    share = waits.share(saved_s)
    # A rank that never arrived is another finding.
    if own_s[ranks].sum() < _MOST_OF_IT * own_s.sum() or share < _NOTABLE or own_s[rank] < _NOTABLE_S:
        return
    if not _is_of_its_own(evidence, ranks):
        return
    who = f"{'the GPU of ' * _is_late_on_gpu(evidence, rank)}{ranks_in_words(ranks)}"
    message = (
        f"{who} {_how_often(evidence, ranks)}: without"
        f" {'its' if len(ranks) == 1 else 'their'} delays the run would be {share:.0%} shorter"
    )
    caused_s = {number: float(waits.caused_s[number]) for number in evidence.run.ranks}
    more: dict[str, Any] = {}
    is_habit = _stands_out(evidence, ranks, _habits(evidence, rank, _enough_calls(evidence, rank, saved_s)))
    if _more_input_s(evidence, rank) > share * waits.run_s / 2 and (is_habit or saved_s > _CHANCE_S):
        fetching = _samples(evidence, rank, ring_format.INPUT)[0]
        message += f"; meanwhile it waited for its data at {fetching.site}"
        if len(_habits(evidence, rank, _SEVERAL)) and _is_made_elsewhere(evidence, rank):
            message += ", which another thread or process makes; the others' may come as slowly, while they wait"
            more = {"made_elsewhere": True}
        finding = of_ops("input-stall", ranks, message, [fetching, *_late(evidence, rank)], waits=caused_s, **more)
        yield replace(finding, effect="advice" if more else "slow")
    elif is_habit:
        seen = _samples(evidence, rank)[:2]
        if throttled := gpus.why_slow(evidence, ranks, saved_s):
            message += f"; {throttled}"
            more = {"throttled": throttled}
        elif seen:
            message += f"; meanwhile it was seen at {seen[0].site}"
        if not throttled and _have_own_part(evidence, ranks):
            message += "; no other rank has this part of the program, which may be more work than the other parts"
            more = {"own_part": True}
        finding = of_ops("straggler", ranks, message, [*seen, *_late(evidence, rank)], waits=caused_s, **more)
        yield replace(finding, effect="advice" if "own_part" in more else "slow")


def _is_made_elsewhere(evidence: Evidence, rank: int) -> bool:
    """Whether it mostly waits for data that a thread or process of its own makes, as the workers of a loader do. Then
    one rank is the last in every step even if all are equally slow: the data of the others is made while they wait for
    that rank, so how fast it is made there is not known."""
    table = evidence.table
    mask = table.is_one_of("sample") & (table.rank == rank) & ((table.flags & ring_format.INPUT) > 0)
    lasted_ns = table.completed_ns[mask] - table.entered_ns[mask] + _SAMPLE_NS
    elsewhere = (table.flags[mask] & ring_format.ELSEWHERE) > 0
    return bool(lasted_ns[elsewhere].sum() * 2 > lasted_ns.sum())


def _how_often(evidence: Evidence, ranks: list[int]) -> str:
    waits = evidence.waits
    if waits.calls and not _are_awaited_in_p2p(evidence, ranks):
        return f"arrived last in {int(waits.last_in[ranks].sum())} of {waits.calls} calls"
    late = np.unique(waits.last[waits.is_over & np.isin(waits.for_rank, ranks)])
    return f"kept others waiting in {len(late)} sends and receives"


def _is_of_its_own(evidence: Evidence, ranks: list[int]) -> bool:
    """Whether these ranks do something between their ops for so much longer than the others. A rank may also be the
    last since its op before took longest on it; and stages of a pipeline, a server and its workers, the leaders of
    groups wait for each other by the order of their messages, however fast each of them is. What a GPU does between its
    ops is not known."""
    if _is_late_on_gpu(evidence, ranks[0]):
        return True
    busy_s = evidence.once(_between_ops_s)
    others = [rank for rank in evidence.run.ranks if rank not in ranks]
    more_s = float(np.mean(busy_s[ranks]) - (np.median(busy_s[others]) if others else 0))
    return evidence.waits.share(more_s) >= _NOTABLE


def _have_own_part(evidence: Evidence, ranks: list[int]) -> bool:
    """Whether the others wait for these ranks mostly in sends and receives, and no other rank makes them on the same
    lines, as with the last stage of a pipeline, or a server. All ranks of a collective come to it from the same part of
    the program, and a stage in the middle does the same as its neighbours: one that is slower is at fault. A stage of
    its own kind has nobody to be compared with: it may have been given more work."""
    if not _are_awaited_in_p2p(evidence, ranks):
        return False
    table = evidence.table
    is_p2p = table.is_one_of("send", "recv")
    rows = {rank: start + np.flatnonzero(is_p2p[start:end]) for rank, (start, end) in table.spans.items()}
    parts = {rank: frozenset(np.unique(_lines(evidence, found)).tolist()) for rank, found in rows.items()}
    return {parts[rank] for rank in ranks}.isdisjoint(part for rank, part in parts.items() if rank not in ranks)


def _are_awaited_in_p2p(evidence: Evidence, ranks: list[int]) -> bool:
    """Whether most of the time that the others wait for these ranks is in sends and receives."""
    waits = evidence.waits
    counted = waits.is_over & np.isin(waits.for_rank, ranks)
    seconds, is_p2p = waits.seconds[counted], evidence.table.is_one_of("send", "recv")[waits.last[counted]]
    return bool(seconds[is_p2p].sum() * 2 > seconds.sum())


def _enough_calls(evidence: Evidence, rank: int, saved_s: float) -> int:
    """`saved_s` has no waits in forwards."""
    others = max(len(evidence.run.ranks) - 1, 1)
    lost_s = saved_s + float(_waits_in_forwards(evidence, rank)[1].sum()) / others
    return _ENOUGH_CALLS if lost_s > _CHANCE_S else _NO_CHANCE_CALLS


def _is_late_on_gpu(evidence: Evidence, rank: int) -> bool:
    """Whether its GPU is late, and not its host: the host had asked for most of the ops in time."""
    waits, table = evidence.waits, evidence.table
    rows = np.unique(waits.last[waits.is_over & (waits.for_rank == rank)])
    is_queued = table.arrived_ns[rows] > table.entered_ns[rows]
    return bool(evidence.run.has_device_times or is_queued.sum() * 2 > len(rows))


def _slowest(evidence: Evidence, own_s: NDArray[np.float64]) -> list[int]:
    """The rank that costs most, and those that come at least half as late: without it, all would wait for them. At most
    half of all ranks: else the others are the quick ones."""
    worst = int(np.argmax(own_s))
    late_s = _lateness_s(evidence)
    alike = [
        rank for rank in np.argsort(-late_s, kind="stable").tolist() if late_s[rank] >= max(late_s[worst] / 2, _TINY)
    ]
    others = [rank for rank in alike if rank != worst] if late_s[worst] > _TINY else []
    return sorted([worst, *others[: max(len(evidence.run.ranks) // 2 - 1, 0)]], key=lambda rank: rank != worst)


_TINY = 1e-6  # seconds: below it, times differ by rounding


def _lateness_s(evidence: Evidence) -> NDArray[np.float64]:
    """By rank: by how much it came later to collectives than the ranks of its group on average, less what it waited
    itself."""
    calls, table, waits = evidence.calls, evidence.table, evidence.waits
    size = len(waits.last_in)
    if not len(calls) or not evidence.run.is_one_clock:
        return np.zeros(size)
    is_whole = calls.has_all & (calls.sizes > 1) & ~calls.any(is_setup(table))
    late_s = np.zeros(size)
    for rows, starts, part in calls.parts():
        sizes = calls.sizes[part]
        arrived_ns = table.arrived_ns[rows]
        after_s = (arrived_ns - np.repeat(np.minimum.reduceat(arrived_ns, starts), sizes)) / 1e9
        after_s *= np.repeat(is_whole[part], sizes)
        after_s -= np.repeat(np.add.reduceat(after_s, starts) / sizes, sizes)
        late_s += np.bincount(table.rank[rows], np.clip(after_s, 0, None), size)
    return np.clip(late_s - waits.suffered_s, 0, None)


def _habits(evidence: Evidence, rank: int, enough_calls: int) -> NDArray[np.int64]:
    """The lines at which it is late again and again, and not now and then; none if that is not its habit: most of the
    delay comes from lines on which it is spread over several calls, and those are enough. Chance makes a rank late here
    and there, and seldom by the same time."""
    waits = evidence.waits
    mine = np.flatnonzero(waits.is_over & (waits.for_rank == rank))
    in_forwards, in_forwards_s = _waits_in_forwards(evidence, rank)
    rows, call = np.unique(np.concatenate([waits.last[mine], in_forwards]), return_inverse=True)
    by_call_s = np.bincount(call, np.concatenate([waits.seconds[mine], in_forwards_s]))
    lines, line = np.unique(_lines(evidence, rows), return_inverse=True)
    by_line_s, squares = np.bincount(line, by_call_s), np.bincount(line, by_call_s**2)
    # So many equal delays have this sum of squares. Rounded, since no two delays are quite equal.
    is_spread = by_line_s**2 > (_SEVERAL - 0.5) * squares
    habit_s = by_line_s[is_spread].sum()
    is_often = habit_s**2 > (enough_calls - 0.5) * squares[is_spread].sum()
    return lines[is_spread] if is_often and habit_s > _MOST_OF_IT * by_line_s.sum() else lines[:0]


def _lines(evidence: Evidence, rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """A number for the line and the op of each row."""
    return np.asarray(evidence.table.site[rows].astype(np.int64) << 8 | evidence.table.op[rows])


def _stands_out(evidence: Evidence, ranks: list[int], lines: NDArray[np.int64]) -> bool:
    """Whether on these lines, these ranks are the last in far more calls than their share; or, where they are late only
    now and then, by more than the others hardly ever are. On a busy machine, each rank is the last in its share of the
    calls, and a few of them have lost most by chance."""
    waits = evidence.waits
    rows, by_call_s = waits.by_call_s()
    counted = np.flatnonzero(np.isin(_lines(evidence, rows), lines))
    if not len(counted):
        return False
    rows, by_call_s = rows[counted], by_call_s[counted]
    is_theirs = np.isin(evidence.table.rank[rows], ranks)
    by_chance = len(ranks) / len(evidence.run.ranks)
    if is_theirs.mean() > (by_chance + 1) / 2:  # nearer to all calls than to their share
        return True
    return bool(np.quantile(by_call_s[is_theirs], 0.5) > np.quantile(by_call_s[~is_theirs], _HARDLY_EVER))


_HARDLY_EVER = 0.95  # of the delays of others are shorter


def _waits_in_forwards(evidence: Evidence, rank: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """In its second forward, DDP's reducer agrees with the other ranks on its buckets, in C++, which is no op that is
    recorded. So a rank that is late in every step is not seen to be late for the ops of that one. The others have
    waited in a forward if all of theirs lasted until it came, and longer than its own by at least half of its delay.
    The row of its next op after each such forward, and how long the others waited."""
    table = evidence.table
    is_forward = table.op == ring_format.OP["ddp_forward"]
    by_rank = {each: low + np.flatnonzero(is_forward[low:high]) for each, (low, high) in table.spans.items()}
    turns = min(map(len, by_rank.values()))
    if not turns or len(by_rank) < 2:
        return np.zeros(0, dtype=np.intp), np.zeros(0)
    own = by_rank[rank][:turns]
    others = np.array([rows[:turns] for each, rows in by_rank.items() if each != rank])
    late_ns = table.entered_ns[own] - table.entered_ns[others]
    longer_ns = (
        table.completed_ns[others] - table.entered_ns[others] - (table.completed_ns[own] - table.entered_ns[own])
    )
    have_waited = (table.completed_ns[others] >= table.entered_ns[own]) & (longer_ns * 2 >= late_ns) & (late_ns > 0)
    ops = evidence.run.ranks[rank].ops.rows
    following = np.searchsorted(ops, own)
    found = np.flatnonzero(have_waited.all(axis=0) & (following < len(ops)))
    return ops[following[found]].astype(np.intp), late_ns[:, found].sum(axis=0) / 1e9


_SEVERAL = 3  # two ranks of a subgroup may take turns in being the last


def _more_input_s(evidence: Evidence, rank: int) -> float:
    """By how much longer a rank waited for its data than the others do."""
    input_s = _input_s(evidence)
    others = [other for other in evidence.run.ranks if other != rank]
    return float(input_s[rank] - (np.median(input_s[others]) if others else 0))


def _input_s(evidence: Evidence) -> NDArray[np.float64]:
    """By rank: how long it waited for its data. Samples are too few to add up, but they tell the share of the time that
    a rank spends between its ops."""
    table, size = evidence.table, len(evidence.waits.last_in)
    rows = np.flatnonzero(table.is_one_of("sample"))
    if not len(rows):
        return np.zeros(size)
    weights, ranks = table.completed_ns[rows] - table.entered_ns[rows] + _SAMPLE_NS, table.rank[rows]
    of_input = np.bincount(ranks, weights * ((table.flags[rows] & ring_format.INPUT) > 0), size)
    return of_input / np.maximum(np.bincount(ranks, weights, size), 1) * evidence.once(_between_ops_s)


def _between_ops_s(evidence: Evidence) -> NDArray[np.float64]:
    """By rank: how long it was blocked in no op, from its first op to its last."""
    table, found = evidence.table, np.zeros(len(evidence.waits.last_in))
    for rank, (start, end) in table.spans.items():  # rank by rank: a column of ten million ops takes its memory
        rows = start + np.flatnonzero(~table.is_event[start:end])
        if not len(rows):
            continue
        entered_ns, completed_ns = table.entered_ns[rows], table.completed_ns[rows]
        since_ns = blocked_since_ns(table.flags[rows], entered_ns, table.waited_ns[rows])
        has_blocked = (completed_ns > since_ns) & (since_ns > 0)
        in_ops_ns = max(entered_ns.max(), completed_ns.max()) - entered_ns.min()
        found[rank] = (in_ops_ns - (completed_ns - since_ns)[has_blocked].sum()) / 1e9
    return np.clip(found, 0, None)


def _samples(evidence: Evidence, rank: int, flag: int = 0) -> list[Op]:
    """Where it was seen between its ops: one sample per line, the longest first."""
    table = evidence.table
    mask = table.is_one_of("sample") & (table.rank == rank) & ((table.flags & flag) == flag)
    rows = np.flatnonzero(mask)
    _, first, line = np.unique(table.site[rows], return_index=True, return_inverse=True)
    by_line_ns = np.bincount(line, table.completed_ns[rows] - table.entered_ns[rows] + _SAMPLE_NS)
    return [table.get(row) for row in rows[first[np.argsort(-by_line_ns)]]]


_SAMPLE_NS = 20_000_000  # the time between two samples


def _late(evidence: Evidence, rank: int) -> list[Op]:
    """The last op of the line for which it was late most."""
    waits = evidence.waits
    mine = waits.is_over & (waits.for_rank == rank)
    rows = waits.last[mine]
    site = evidence.table.site[rows]
    worst = np.argmax(np.bincount(site, waits.seconds[mine]))
    return [evidence.table.get(rows[site == worst].max())]

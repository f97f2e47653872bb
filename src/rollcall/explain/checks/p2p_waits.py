"""What a stuck send or receive waits for, and whether that explains it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rollcall.explain import source
from rollcall.explain.checks.deaths import was_stopped, way_out
from rollcall.explain.ends import was_handled
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, of_call, of_ops, wait_in, where
from rollcall.explain.loading.load import Rank
from rollcall.explain.loading.table import Op

MANY = 500  # more ops without partner say nothing new


def stuck_receives(evidence: Evidence) -> list[Op]:
    """Returns receives without a partner: first those that wait for no rank that waits itself, then those that wait
    for these, and so on; in the order in which they began."""
    recvs = evidence.pairs.unmatched("recv")[:MANY]
    stopped = [op for op in recvs if has_stopped(evidence, op) or _is_beside_stopped(evidence, op)]
    steps = _steps_to_end(evidence, [op.peer for op in stopped])
    return sorted(stopped, key=lambda op: (steps[op.peer], op.entered_ns))


def _steps_to_end(evidence: Evidence, ranks: Iterable[int]) -> dict[int, int]:
    """By rank: how many sends and receives lead from it, each to the rank that it waits for, to one that waits in none.
    0 for all ranks of a circle."""
    steps: dict[int, int] = {}
    for start in ranks:
        path: list[int] = []
        rank = start
        while rank not in steps and rank not in path and (op := evidence.held.get(rank)) and op.is_point_to_point:
            path.append(rank)
            rank = op.peer
        circle = path[path.index(rank) :] if rank in path else []
        steps |= dict.fromkeys([*circle, rank], 0) if rank not in steps else {}
        for number, before in enumerate(reversed(path[: len(path) - len(circle)]), 1):
            steps[before] = steps[rank] + number
    return steps


def _is_beside_stopped(evidence: Evidence, recv: Op) -> bool:
    """Whether its rank has begun it together with the send or receive in which it is stopped: it would wait for this
    one next."""
    held = evidence.held.get(recv.rank)
    is_open = recv.is_async and not recv.completed_ns and not recv.is_failed
    return is_open and held is not None and held.is_point_to_point and has_stopped(evidence, held)


def has_stopped(evidence: Evidence, op: Op) -> bool:
    """Whether an op is stuck, or failed for want of a partner. If a rank has died by itself, ops fail for that."""
    has_failed = op.is_failed and not evidence.died_by_themselves and not was_handled(evidence, op)
    return bool(evidence.is_stuck[op.row]) or has_failed


def is_elsewhere(evidence: Evidence, number: int) -> bool:
    """Whether a rank died or was stopped, or whether it, or whom it waits for, is in no op and known to sit somewhere:
    another finding says so."""
    rank = evidence.run.ranks.get(number)
    if rank is None or rank.exit_code == 0:
        return False
    is_gone = number in evidence.died_by_themselves | evidence.failing or was_stopped(evidence, rank)
    return is_gone or any(_is_idle(evidence, each) for each in evidence.ways_on([number]))


def _is_idle(evidence: Evidence, rank: int) -> bool:
    is_free = rank not in evidence.blocked and not evidence.has_ended(rank) and not polls(evidence, rank)
    return is_free and evidence.seen_now(rank) is not None


def polls(evidence: Evidence, rank: int, waiting: Sequence[Op] = ()) -> bool:
    """Whether a rank has begun an async collective, which other ranks have not come to: while it is in no op, it only
    asks whether that is complete. `waiting`: none of these ranks has come to it."""
    for op in reversed(evidence.run.ranks[rank].ops[-_RECENT:]):
        is_open = op.is_async and not op.completed_ns and not op.is_failed and not op.is_point_to_point
        call = evidence.calls.of(op) if is_open and op.thread == 0 else None
        if call is not None and call.missing:
            return all(each.thread == 0 and each.rank in call.missing for each in waiting)
    return False


_RECENT = 3  # ops: a program polls what it has begun last


def exited(evidence: Evidence, ops: list[Op]) -> Finding | None:
    """A rank that exited in the middle of the program, or left a loop before the others and came to its end, while
    others wait for its sends or receives."""
    for op in ops:
        number = op.peer if op.peer >= 0 else _first_exited(evidence, op)
        peer = evidence.run.ranks.get(number)
        if peer is None or peer.exit_code != 0:
            continue
        if (site := way_out(peer, op)) is not None:
            message = f"rank {number} exited at {site} while {wait_in([op])} for {'it' if op.peer >= 0 else 'any rank'}"
            exited = of_ops("rank-exited-early", [number], message, [op])
            return replace(exited, sites=(site, *exited.sites))
        if has_stopped(evidence, op) and (finding := _left_loop(evidence, peer, op)) is not None:
            return finding
    return None


def _first_exited(evidence: Evidence, recv: Op) -> int:
    """Of those that a receive from any rank may wait for: the first that exited in the middle of the program, while
    others still run; -1: none did. If all of them have exited, it is the receive that is one too many."""
    others = [evidence.run.ranks[rank] for rank in recv.group.ranks if rank in evidence.run.ranks and rank != recv.rank]
    gone = [rank for rank in others if rank.exit_code == 0 and way_out(rank, recv) is not None]
    if all(rank.has_ended for rank in others):
        return -1
    return min(gone, key=lambda rank: rank.ended_ns).number if gone else -1


def _left_loop(evidence: Evidence, peer: Rank, op: Op) -> Finding | None:
    """Whether the last collective of a rank that has ended met one of a loop that the waiting rank was still in: the
    calls match by chance, as two barriers do."""
    call = evidence.calls.of(peer.last) if peer.last is not None and not peer.last.is_point_to_point else None
    its, mine = (call.ops[peer.number], call.ops.get(op.rank)) if call else (None, None)
    if call is None or its is None or mine is None or its.site is None or mine.site is None:
        return None
    if its.site == mine.site or not source.is_outside_loop(its.site, mine.site):
        return None
    message = (
        f"{wait_in([op])} for rank {op.peer}, which has ended: its last call, {where(its)}, met {where(mine)}, so it"
        f" has left that loop before the others"
    )
    finding = of_call("missing-rank", call, [op.peer], message, [its, mine, op])
    return replace(finding, sites=(*finding.sites, *source.ways_out_of_loop(its.site, mine.site)))

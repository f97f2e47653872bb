"""Sends and receives that wait in a circle, or have no partner."""

from collections.abc import Iterator
from dataclasses import replace

from rollcall.explain.checks.deaths import was_stopped
from rollcall.explain.checks.misaddressed import misaddressed
from rollcall.explain.checks.p2p_waits import MANY, exited, has_stopped, is_elsewhere, stuck_receives
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, in_circle, of_ops, where
from rollcall.explain.loading.table import Op


def deadlocks(evidence: Evidence) -> Iterator[Finding]:
    yield from evidence.once(circles)


def circles(evidence: Evidence) -> list[Finding]:
    """Ranks that wait for each other in a circle of sends and receives; each pair of a halo exchange may be in one."""
    found = [_circle(evidence, ranks) for ranks in _ranks_in_circles(evidence) if not _is_misaddressed(evidence, ranks)]
    return [finding for finding in found if finding is not None]


def _ranks_in_circles(evidence: Evidence) -> Iterator[list[int]]:
    done: set[int] = set()
    for start in evidence.stuck:
        path: list[int] = []
        rank = start
        while (
            rank in evidence.stuck and rank not in path and rank not in done and evidence.stuck[rank].is_point_to_point
        ):
            path.append(rank)
            waited_for = evidence.waits_for(evidence.stuck[rank])
            if len(waited_for) != 1:
                break
            rank = waited_for[0]
        else:
            if rank in path:
                yield path[path.index(rank) :]
        done.update(path)


def _is_misaddressed(evidence: Evidence, circle: list[int]) -> bool:
    """Whether one of them has sent or waits for a message under another tag, or to or from another rank: then the
    others only wait for it."""
    told = evidence.once(misaddressed)
    ranks = {*told.ranks, *evidence.table.rank[told.evidence["rows"]].tolist()} if told else set()
    return not ranks.isdisjoint(circle)


def _circle(evidence: Evidence, cycle: list[int]) -> Finding | None:
    ops = [evidence.blocked[rank] for rank in cycle]
    if len({op.op for op in ops}) > 1 and len(cycle) == 2:
        return None  # a send and a receive that do not match: another finding says why
    details = in_circle(ops)
    only_receive = {"only_receive": True} if all(op.op == "recv" for op in ops) else {}
    message = f"these ranks wait for each other in a circle: {details}"
    finding = of_ops("p2p-deadlock", cycle, message, ops, cycle=cycle, **only_receive)
    return replace(finding, since_ns=min(op.entered_ns for op in ops))


def unmatched(evidence: Evidence) -> Iterator[Finding]:
    """Sends that nobody receives, receives that nobody sends to, and why."""
    if (finding := evidence.once(misaddressed)) is not None:
        yield finding
        return
    if (finding := _from_collective(evidence)) is not None:
        yield finding
        return
    sends = list(evidence.pairs.unmatched("send")[:MANY])
    stuck = [recv for recv in stuck_receives(evidence) if not _only_waits(evidence, recv)]
    is_deadlock = bool(evidence.once(circles))
    lost = [send for send in sends if not is_deadlock and _is_lost(evidence, send)]
    lost = [send for send in lost if not (evidence.is_stuck[send.row] and _only_waits(evidence, send))]
    if (finding := exited(evidence, [*stuck, *lost])) is not None:
        yield finding
    elif stuck:
        recv = stuck[0]
        peer = f"rank {recv.peer}" if recv.peer >= 0 else "any rank"
        message = f"rank {recv.rank} waits in {where(recv)} for {peer}, which never sends to it"
        yield of_ops("unmatched-recv", [recv.rank], message, [recv])
    elif lost:
        # First the sends whose receiver never receives from this rank: another receiver may only be stuck.
        met, _ = evidence.pairs.matched()
        known = set(zip(evidence.table.rank[met].tolist(), evidence.table.peer[met].tolist(), strict=True))
        send = min(lost, key=lambda op: ((op.rank, op.peer) in known, op.entered_ns))
        message = f"rank {send.rank}'s {where(send)} to rank {send.peer} was never received"
        has_stopped = evidence.is_stuck[send.row] or send.is_failed
        yield replace(
            of_ops("unmatched-send", [send.rank], message, [send]), effect="stopped" if has_stopped else "wrong"
        )


def _from_collective(evidence: Evidence) -> Finding | None:
    """A receive that ended though nobody sent: it took what a collective of its peer sent, as gloo's monitored_barrier
    does. Then that one waits."""
    for recv in evidence.pairs.unmatched("recv")[:MANY] if evidence.stuck else ():
        its = evidence.stuck.get(recv.peer)
        if recv.completed_ns and not recv.is_failed and its is not None and not its.is_point_to_point:
            message = f"rank {recv.rank}'s {where(recv)} took what rank {recv.peer} sent in {where(its)}"
            return of_ops("p2p-against-collective", [recv.rank], message, [recv, its])
    return None


def _only_waits(evidence: Evidence, op: Op) -> bool:
    """Whether what its peer does explains that it does not come: it waits itself for others, or does something else."""
    if op.peer in evidence.blocked and not evidence.has_ended(op.peer):
        its = evidence.blocked[op.peer]
        return not its.is_point_to_point or its.peer != op.rank or bool(evidence.once(circles))
    return is_elsewhere(evidence, op.peer)


def _is_lost(evidence: Evidence, send: Op) -> bool:
    """Whether a send without a partner never gets one: it is stuck or failed, or its receiver came to a good end."""
    receiver = evidence.run.ranks.get(send.peer)
    if receiver is not None and (send.peer in evidence.died_by_themselves or was_stopped(evidence, receiver)):
        return False
    is_over = evidence.run.outcome == "ok" or (receiver is not None and receiver.exit_code == 0)
    return has_stopped(evidence, send) or is_over

"""Sends and receives that wait in a circle, have no partner, or differ from their partner."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain import source
from rollcall.explain.checks.deaths import was_stopped, way_out
from rollcall.explain.ends import was_handled
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Effect, Finding, in_circle, of_call, of_ops, wait_in, where
from rollcall.explain.loading.load import Rank
from rollcall.explain.loading.table import Op
from rollcall.explain.matching import Call


def deadlocks(evidence: Evidence) -> Iterator[Finding]:
    if (finding := evidence.once(deadlock)) is not None:
        yield finding


def deadlock(evidence: Evidence) -> Finding | None:
    """Ranks that wait for each other in a circle of sends and receives."""
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
            circle = path[path.index(rank) :] if rank in path else []
            if circle and not _is_misaddressed(evidence, circle) and (finding := _circle(evidence, circle)):
                return finding
        done.update(path)
    return None


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
    finding = of_ops("p2p-deadlock", cycle, f"these ranks wait for each other in a circle: {details}", ops, cycle=cycle)
    return replace(finding, since_ns=min(op.entered_ns for op in ops))


def unmatched(evidence: Evidence) -> Iterator[Finding]:
    """Sends that nobody receives, receives that nobody sends to, and why."""
    if (finding := evidence.once(misaddressed)) is not None:
        yield finding
        return
    if (finding := _from_collective(evidence)) is not None:
        yield finding
        return
    sends = list(evidence.pairs.unmatched("send")[:_MANY])
    stuck = [recv for recv in _stuck_receives(evidence) if not _only_waits(evidence, recv)]
    is_deadlock = evidence.once(deadlock) is not None
    lost = [send for send in sends if not is_deadlock and _is_lost(evidence, send)]
    lost = [send for send in lost if not (evidence.is_stuck[send.row] and _only_waits(evidence, send))]
    if (finding := _exited(evidence, [*stuck, *lost])) is not None:
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


def _exited(evidence: Evidence, ops: list[Op]) -> Finding | None:
    """A rank that exited in the middle of the program, or left a loop before the others and came to its end, while
    others wait for its sends or receives."""
    for op in ops:
        peer = evidence.run.ranks.get(op.peer)
        if peer is None or peer.exit_code != 0:
            continue
        if (site := way_out(peer, op)) is not None:
            message = f"rank {op.peer} exited at {site} while {wait_in([op])} for it"
            exited = of_ops("rank-exited-early", [op.peer], message, [op])
            return replace(exited, sites=(site, *exited.sites))
        if _has_stopped(evidence, op) and (finding := _left_loop(evidence, peer, op)) is not None:
            return finding
    return None


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


_MANY = 500  # more ops without partner say nothing new


def _from_collective(evidence: Evidence) -> Finding | None:
    """A receive that ended though nobody sent: it took what a collective of its peer sent, as gloo's monitored_barrier
    does. Then that one waits."""
    for recv in evidence.pairs.unmatched("recv")[:_MANY] if evidence.stuck else ():
        its = evidence.stuck.get(recv.peer)
        if recv.completed_ns and not recv.is_failed and its is not None and not its.is_point_to_point:
            message = f"rank {recv.rank}'s {where(recv)} took what rank {recv.peer} sent in {where(its)}"
            return of_ops("p2p-against-collective", [recv.rank], message, [recv, its])
    return None


def misaddressed(evidence: Evidence) -> Finding | None:
    """A receive that waits for what was sent under another tag, to another rank, or by another rank."""
    recvs, sends = list(evidence.pairs.unmatched("recv")[:_MANY]), list(evidence.pairs.unmatched("send")[:_MANY])
    stuck = [recv for recv in _stuck_receives(evidence) if not _is_elsewhere(evidence, recv.peer)]
    for explain in (_by_tag, _by_distance, _by_sender, _by_receiver):
        for recv in stuck:
            if (finding := explain(evidence, recv, sends, recvs)) is not None:
                return replace(finding, evidence={"rows": [recv.row]})
    return None


def _stuck_receives(evidence: Evidence) -> list[Op]:
    """Returns receives without a partner: first those that wait for no rank that waits itself, then those that wait
    for these, and so on; in the order in which they began."""
    recvs = evidence.pairs.unmatched("recv")[:_MANY]
    stopped = [op for op in recvs if _has_stopped(evidence, op) or _is_beside_stopped(evidence, op)]
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
    return is_open and held is not None and held.is_point_to_point and _has_stopped(evidence, held)


def _has_stopped(evidence: Evidence, op: Op) -> bool:
    """Whether an op is stuck, or failed for want of a partner. If a rank has died by itself, ops fail for that."""
    has_failed = op.is_failed and not evidence.died_by_themselves and not was_handled(evidence, op)
    return bool(evidence.is_stuck[op.row]) or has_failed


def _only_waits(evidence: Evidence, op: Op) -> bool:
    """Whether what its peer does explains that it does not come: it waits itself for others, or does something else."""
    if op.peer in evidence.blocked and not evidence.has_ended(op.peer):
        its = evidence.blocked[op.peer]
        return not its.is_point_to_point or its.peer != op.rank or evidence.once(deadlock) is not None
    return _is_elsewhere(evidence, op.peer)


def _is_elsewhere(evidence: Evidence, number: int) -> bool:
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


def _is_lost(evidence: Evidence, send: Op) -> bool:
    """Whether a send without a partner never gets one: it is stuck or failed, or its receiver came to a good end."""
    receiver = evidence.run.ranks.get(send.peer)
    if receiver is not None and (send.peer in evidence.died_by_themselves or was_stopped(evidence, receiver)):
        return False
    is_over = evidence.run.outcome == "ok" or (receiver is not None and receiver.exit_code == 0)
    return _has_stopped(evidence, send) or is_over


def _by_tag(evidence: Evidence, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """The sender sent, under another tag."""
    for send in sends:
        is_expected = send.peer == recv.rank and recv.peer in (send.rank, _ANY)
        if is_expected and send.tag != recv.tag:
            message = (
                f"rank {recv.rank} waits in {where(recv)} for tag {recv.tag}, but rank {send.rank} sent tag"
                f" {send.tag} in {where(send)}"
            )
            ops = _odd_side(evidence, send, recv, lambda op: op.tag)
            return of_ops("tag-mismatch", {op.rank for op in ops}, message, ops)
    return None


_ANY = -1  # the peer of a receive from any rank


def _by_distance(evidence: Evidence, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """It waits for a rank at another distance than all other ranks do, as the left neighbour of a ring, while another
    rank sends to it; or the rank that it waits for has sent to another distance."""
    is_sent_to = any(send.peer == recv.rank for send in sends)
    for op in (*([recv] if is_sent_to else []), *(send for send in sends if send.rank == recv.peer)):
        if _is_at_odd_distance(evidence, op):
            message = f"rank {op.rank}'s {where(op)} names rank {op.peer}, at another distance than on all other ranks"
            return of_ops("wrong-peer", [op.rank], message, [op])
    return None


def _is_at_odd_distance(evidence: Evidence, op: Op) -> bool:
    """Compared with the same send or receive of the other ranks: their n-th, as it is the n-th of this rank; or all
    under its tag."""
    table, members = evidence.table, np.array(op.group.ranks)
    rows = evidence.pairs.rows
    rows = rows[(table.op[rows] == table.op[op.row]) & (table.group[rows] == table.group[op.row])]
    if _is_usual_on_line(evidence, op, rows):
        return False
    begins, ends = (np.searchsorted(table.rank[rows], members, side) for side in ("left", "right"))
    nth = begins + int(np.searchsorted(rows, op.row) - begins[op.group.ranks.index(op.rank)])
    alike = rows[nth[nth < ends]], rows[table.tag[rows] == op.tag]
    return any(_differs_from_all(evidence, op, found[found != op.row]) for found in alike)


def _is_usual_on_line(evidence: Evidence, op: Op, rows: NDArray[np.intp]) -> bool:
    """Whether another rank names a rank at the same distance on this line and under this tag: the first and the last
    stage of a pipeline leave out lines, and their n-th op is another one than that of the others."""
    table, size = evidence.table, len(op.group.ranks)
    same = rows[(table.site[rows] == table.site[op.row]) & (table.tag[rows] == op.tag) & (table.rank[rows] != op.rank)]
    distances = (table.peer[same] - table.rank[same]) % size
    return op.site is not None and bool((distances == (op.peer - op.rank) % size).any())


def _differs_from_all(evidence: Evidence, op: Op, others: NDArray[np.intp]) -> bool:
    table, size = evidence.table, len(op.group.ranks)
    distances = set(((table.peer[others] - table.rank[others]) % size).tolist())
    is_odd = len(distances) == 1 and (op.peer - op.rank) % size not in distances
    return is_odd and len(set(table.rank[others].tolist()) - {op.rank}) >= _ENOUGH


_ENOUGH = 3  # ranks: two may have the same distance by chance, as the workers of a server


def _by_receiver(evidence: Evidence, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """It waits for a rank that sends nothing to it, while another rank does: it waits for the wrong one. Unless that
    rank has exited in the middle of the program; or waits for it in turn: then they wait for each other, and the other
    sender only waits; or is still in a collective that this rank has left behind."""
    peer, call = evidence.blocked.get(recv.peer), _collective_of(evidence, recv.peer)
    if recv.peer == _ANY or (peer is not None and peer.is_point_to_point and peer.peer == recv.rank):
        return None
    if (call is not None and recv.rank in call.ops) or _exited(evidence, [recv]) is not None:
        return None
    if any((send.rank, send.peer) == (recv.peer, recv.rank) for send in sends):
        return None
    for send in sends:
        if send.peer == recv.rank and not _is_only_early(evidence, send):
            message = (
                f"rank {recv.rank} waits in {where(recv)} for rank {recv.peer}, but it is rank {send.rank} that sends"
                f" to it, in {where(send)}"
            )
            return of_ops("wrong-peer", [recv.rank], message, [recv])
    return None


def _by_sender(evidence: Evidence, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """The rank it waits for sent to another rank, which does not receive that."""
    for send in sends:
        is_received = any((r.rank, r.peer) == (send.peer, send.rank) for r in recvs)
        is_explained = is_received or _is_only_early(evidence, send) or _exited(evidence, [send]) is not None
        if send.rank == recv.peer and not is_explained:
            message = (
                f"rank {recv.rank} waits in {where(recv)} for rank {recv.peer}, which sends to rank {send.peer}"
                f" instead, in {where(send)}"
            )
            return of_ops("wrong-peer", [send.rank], message, [send])
    return None


def _is_only_early(evidence: Evidence, send: Op) -> bool:
    """Whether its receiver may still come to receive it: it is in a circle of sends; or stuck for something else than
    this rank; or in a collective that this rank has left behind, or to which few ranks have come, so that it is the
    receiver that is astray."""
    is_stuck = send.peer in evidence.blocked and send.rank not in evidence.ways_on([send.peer])
    call = _collective_of(evidence, send.peer)
    is_behind = call is not None and (send.rank in call.ops or len(call.ops) < len(call.missing))
    return (send.is_blocked and (is_stuck or is_behind)) or _waits_in_circle(evidence, send)


def _collective_of(evidence: Evidence, rank: int) -> Call | None:
    """The collective that a rank is blocked in."""
    op = evidence.blocked.get(rank)
    return evidence.calls.of(op) if op is not None and not op.is_point_to_point else None


def _waits_in_circle(evidence: Evidence, send: Op) -> bool:
    """Whether its rank is still in this send, in a circle of sends: its receiver comes to its receive later."""
    ops = [evidence.blocked[rank] for rank in evidence.ways_on([send.peer]) if rank in evidence.blocked]
    return send.is_blocked and any(op.op == "send" and op.rank != send.rank for op in ops) and send in ops


def _odd_side(evidence: Evidence, send: Op, recv: Op, read: Callable[[Op], Any]) -> list[Op]:
    """Returns which of two ops that do not match differs from what other ranks did in the same turn on the same lines,
    or else from most others; both if that cannot be decided."""
    if len(evidence.run.ranks) < 3:
        return [send, recv]
    table, rows = evidence.table, evidence.pairs.rows
    alike = [table.get(row) for op in (send, recv) for row in _same_turn(evidence, op)]
    others = [table.get(row) for row in rows[:_MANY] if row not in (send.row, recv.row)]
    for given in (alike, others):
        like_send = sum(read(op) == read(send) for op in given)
        like_recv = sum(read(op) == read(recv) for op in given)
        if like_send != like_recv:
            return [recv] if like_send > like_recv else [send]
    return [send, recv]


def _same_turn(evidence: Evidence, op: Op) -> list[int]:
    """The rows of other ranks' ops of this line that are their n-th there, as this is the n-th of its rank."""
    table = evidence.table
    rows = evidence.pairs.rows[table.site[evidence.pairs.rows] == table.site[op.row]]
    by_rank: dict[int, list[int]] = {}
    for row in rows.tolist():
        by_rank.setdefault(int(table.rank[row]), []).append(row)
    turn = by_rank[op.rank].index(op.row)
    return [mine[turn] for rank, mine in by_rank.items() if rank != op.rank and turn < len(mine)]


def mismatches(evidence: Evidence) -> Iterator[Finding]:
    """Sends and receives that match, with different sizes or types."""
    table = evidence.table
    sends, recvs = evidence.pairs.matched()
    if not len(sends):
        return
    dtypes = np.array([hash(str(each.get("dtypes"))) for each in table.names.signatures])
    differ = (table.size_bytes[sends] != table.size_bytes[recvs]) | (
        dtypes[table.signature[sends]] != dtypes[table.signature[recvs]]
    )
    differ &= (table.signature[sends] > 0) & (table.signature[recvs] > 0)
    if differ.any():
        send, recv = table.get(sends[np.argmax(differ)]), table.get(recvs[np.argmax(differ)])
        kind, field = "p2p-size", "shapes"
        if send.signature.get("dtypes") != recv.signature.get("dtypes"):
            kind, field = "p2p-dtype", "dtypes"
        details = f"{_tensor(send)} was sent, {_tensor(recv)} received"
        message = f"rank {send.rank}'s {where(send)} and rank {recv.rank}'s {where(recv)} do not match: {details}"
        odd = _odd_side(evidence, send, recv, lambda op: op.signature.get(field))
        has_stopped = any(op.is_blocked or op.is_failed for op in (send, recv))
        has_stopped = has_stopped or any(
            evidence.is_stuck[op.row] or op.is_failed for op in _after(evidence, send, recv)
        )
        effect: Effect = "stopped" if has_stopped else "wrong"
        known = _out_of_step(evidence, send, recv) or _out_of_exchange(evidence, send, recv)
        finding = known or of_ops(kind, {op.rank for op in odd}, message, [send, recv])
        yield replace(finding, effect=effect)


def _out_of_step(evidence: Evidence, send: Op, recv: Op) -> Finding | None:
    """Of a send and a receive that differ: whether they were never meant for each other. On their lines, all others
    have met ops of other lines: one of the two ranks has left out an op there, or made one too many, and is a message
    ahead."""
    table = evidence.table
    sends, recvs = evidence.pairs.matched()
    is_other = sends != send.row
    meant_recvs = np.unique(table.site[recvs[is_other & (table.site[sends] == table.site[send.row])]])
    meant_sends = np.unique(table.site[sends[is_other & (table.site[recvs] == table.site[recv.row])]])
    is_known = len(meant_recvs) and len(meant_sends) and send.site is not None and recv.site is not None
    if not is_known or table.site[recv.row] in meant_recvs or table.site[send.row] in meant_sends:
        return None
    took = f"rank {recv.rank}'s {where(recv)} took what rank {send.rank} sent in {where(send)}"
    if _comes_first(evidence, recv.rank, meant_recvs, recv):
        meant = table.names.sites[meant_recvs[0]]
        message = f"{took}: that was meant for the receive at {meant}, which was left out, or it was sent twice"
        odd = send if _has_made_more(evidence, send) else recv
        finding = of_ops("unmatched-send", [odd.rank], message, [send, recv])
    elif _comes_first(evidence, send.rank, meant_sends, send):
        meant = table.names.sites[meant_sends[0]]
        message = f"{took}, and not at {meant}: that send was left out, or one receive is too many"
        odd = recv if _has_made_more(evidence, recv) else send
        finding = of_ops("unmatched-recv", [odd.rank], message, [recv, send])
    else:
        return None
    return replace(finding, sites=(*finding.sites, *([meant] if meant else [])))


def _out_of_exchange(evidence: Evidence, send: Op, recv: Op) -> Finding | None:
    """The same where nobody has met on these lines before: one of them stands on a line that both sends and receives,
    as a ring does, so it was meant for that line on its peer; and it is past the line of the other."""
    took = f"rank {recv.rank}'s {where(recv)} took what rank {send.rank} sent in {where(send)}"
    if _is_exchange_past(evidence, send, recv):
        message = f"{took}, after the line of the receive: a send was left out there, or this receive is too many"
        odd = recv if _has_made_more(evidence, recv) else send
        finding = of_ops("unmatched-recv", [odd.rank], message, [recv, send])
    elif _is_exchange_past(evidence, recv, send):
        message = f"{took}, before the line of the receive: a receive was left out there, or this send is too many"
        odd = send if _has_made_more(evidence, send) else recv
        finding = of_ops("unmatched-send", [odd.rank], message, [send, recv])
    else:
        return None
    return replace(finding, since_ns=min(send.entered_ns, recv.entered_ns))


def _is_exchange_past(evidence: Evidence, op: Op, other: Op) -> bool:
    table, (start, end) = evidence.table, evidence.table.spans[op.rank]
    ops = {table.get(start + row).op for row in np.flatnonzero(table.site[start:end] == table.site[op.row])[:_MANY]}
    if op.site is None or other.site is None or not {"send", "recv"} <= ops:
        return False
    return source.is_past(op.site, other.site)


def _comes_first(evidence: Evidence, rank: int, lines: NDArray[Any], op: Op) -> bool:
    """Whether a rank was on one of these lines before it first came to the line of the op."""
    start, end = evidence.table.spans[rank]
    site = evidence.table.site[start:end]
    return bool(np.isin(site[: np.argmax(site == evidence.table.site[op.row])], lines).any())


def _has_made_more(evidence: Evidence, op: Op) -> bool:
    """Whether its rank has made more ops on its line than any other rank."""
    table = evidence.table
    counts = np.bincount(table.rank[table.site == table.site[op.row]])
    return bool(counts[op.rank] > np.delete(counts, op.rank).max(initial=0) > 0)


def _after(evidence: Evidence, send: Op, recv: Op) -> list[Op]:
    """The later ops between the two ranks: bytes that were not expected are taken for the next message."""
    table, rows = evidence.table, evidence.pairs.rows
    of_two = np.isin(table.rank[rows], (send.rank, recv.rank)) & np.isin(table.peer[rows], (send.rank, recv.rank))
    return [table.get(row) for row in rows[of_two & (table.entered_ns[rows] > send.entered_ns)][:_MANY]]


def _tensor(op: Op) -> str:
    return f"{op.signature.get('shapes')} {op.signature.get('dtypes')}"

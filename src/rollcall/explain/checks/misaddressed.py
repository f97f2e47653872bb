"""Messages under another tag, to another rank or from another rank than their receiver waits for."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.checks.p2p_mismatches import odd_side
from rollcall.explain.checks.p2p_waits import MANY, exited, is_elsewhere, stuck_receives
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, of_ops, where
from rollcall.explain.loading.table import Op
from rollcall.explain.matching import Call


def misaddressed(evidence: Evidence) -> Finding | None:
    """A receive that waits for what was sent under another tag, to another rank, or by another rank. Its evidence has
    the rows of the ops that do not get their partner because of that."""
    recvs, sends = list(evidence.pairs.unmatched("recv")[:MANY]), list(evidence.pairs.unmatched("send")[:MANY])
    stuck = [recv for recv in stuck_receives(evidence) if not is_elsewhere(evidence, recv.peer)]
    for explain in (_by_tag, _by_pair, _by_distance, _by_sender, _by_receiver):
        for recv in stuck:
            if (finding := explain(evidence, recv, sends, recvs)) is not None:
                return finding
    return None


def _by_tag(evidence: Evidence, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """The sender sent, under another tag."""
    for send in sends:
        is_expected = send.peer == recv.rank and recv.peer in (send.rank, _ANY)
        if is_expected and send.tag != recv.tag:
            message = (
                f"rank {recv.rank} waits in {where(recv)} for tag {recv.tag}, but rank {send.rank} sent tag"
                f" {send.tag} in {where(send)}"
            )
            ops = odd_side(evidence, send, recv, lambda op: op.tag)
            return of_ops("tag-mismatch", {op.rank for op in ops}, message, ops, rows=[recv.row, send.row])
    return None


_ANY = -1  # the peer of a receive from any rank


def _by_pair(evidence: Evidence, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """Ranks exchange in pairs, as in gossip, and it, or the rank that it waits for, names one that is in a pair with
    another rank in this turn."""
    for op in (recv, *(send for send in sends if send.rank == recv.peer)):
        if (other := evidence.once(_Exchange.of(evidence, op)).in_pair_with(op)) is not None:
            message = (
                f"rank {op.rank}'s {where(op)} names rank {op.peer}, which exchanges with rank {other} in this turn"
            )
            return of_ops("wrong-peer", [op.rank], message, [op], rows=[recv.row, op.row])
    return None


@dataclass(frozen=True)
class _Exchange:
    """The sends, or the receives, of all ranks on one line."""

    op: int
    site: int
    group: int

    @classmethod
    def of(cls, evidence: Evidence, op: Op) -> "_Exchange":
        table = evidence.table
        return cls(int(table.op[op.row]), int(table.site[op.row]), int(table.group[op.row]))

    def __call__(self, evidence: Evidence) -> "_Partners":
        table, rows = evidence.table, evidence.pairs.rows
        is_mine = (table.op[rows] == self.op) & (table.site[rows] == self.site) & (table.group[rows] == self.group)
        rows = rows[is_mine] if self.site else rows[:0]
        rank, peer = table.rank[rows].astype(np.intp), table.peer[rows]
        turns = np.arange(len(rows)) - np.searchsorted(rank, rank)
        shape = int(turns.max(initial=0)) + 1, int(max(rank.max(initial=0), peer.max(initial=0))) + 1
        named = np.full(shape, _ANY)
        named[turns, rank] = peer
        return _Partners(dict(zip(rows.tolist(), turns.tolist(), strict=True)), named)


@dataclass(frozen=True)
class _Partners:
    """Whom each rank names in each turn."""

    turns: dict[int, int]  # by row
    named: NDArray[np.int64]  # by turn and rank; _ANY: no rank

    def in_pair_with(self, op: Op) -> int | None:
        """The rank that the peer of this op exchanges with in its turn; None, if it is this one, or nobody, or if not
        all turns before were exchanges in pairs."""
        turn = self.turns.get(op.row, 0)
        if op.peer == _ANY or not turn or not self._are_pairs(self.named[:turn]):
            return None
        now = self.named[turn]
        other = int(now[op.peer])
        return other if other not in (op.rank, _ANY) and now[other] == op.peer else None

    def _are_pairs(self, named: NDArray[np.int64]) -> bool:
        back = np.take_along_axis(named, np.maximum(named, 0), axis=1)
        return bool(((named == _ANY) | (back == np.arange(named.shape[1]))).all())


def _by_distance(evidence: Evidence, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """It waits for a rank at another distance than all other ranks do, as the left neighbour of a ring, while another
    rank sends to it; or the rank that it waits for has sent to another distance."""
    is_sent_to = any(send.peer == recv.rank for send in sends)
    for op in (*([recv] if is_sent_to else []), *(send for send in sends if send.rank == recv.peer)):
        if _is_at_odd_distance(evidence, op):
            message = f"rank {op.rank}'s {where(op)} names rank {op.peer}, at another distance than on all other ranks"
            return of_ops("wrong-peer", [op.rank], message, [op], rows=[recv.row, op.row])
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
    if (call is not None and recv.rank in call.ops) or exited(evidence, [recv]) is not None:
        return None
    if any((send.rank, send.peer) == (recv.peer, recv.rank) for send in sends):
        return None
    for send in sends:
        if send.peer == recv.rank and not (_is_only_early(evidence, send) or _is_its_turn(evidence, recv, send)):
            message = (
                f"rank {recv.rank} waits in {where(recv)} for rank {recv.peer}, but it is rank {send.rank} that sends"
                f" to it, in {where(send)}"
            )
            return of_ops("wrong-peer", [recv.rank], message, [recv], rows=[recv.row])
    return None


def _is_its_turn(evidence: Evidence, recv: Op, send: Op) -> bool:
    """Whether its rank receives from both of them on this line in turn, as a server from its workers, and now it is the
    turn of the one it waits for: it comes to the other one later."""
    table, rows = evidence.table, evidence.pairs.rows
    same = rows[(table.rank[rows] == recv.rank) & (table.site[rows] == table.site[recv.row])]
    from_peer, from_sender = (int((table.peer[same] == rank).sum()) for rank in (recv.peer, send.rank))
    return from_sender > 0 and 1 < from_peer <= from_sender + 1


def _by_sender(evidence: Evidence, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """The rank it waits for sent to another rank, which does not receive that."""
    for send in sends:
        is_received = any((r.rank, r.peer) == (send.peer, send.rank) for r in recvs)
        is_explained = is_received or _is_only_early(evidence, send) or exited(evidence, [send]) is not None
        if send.rank == recv.peer and not is_explained:
            message = (
                f"rank {recv.rank} waits in {where(recv)} for rank {recv.peer}, which sends to rank {send.peer}"
                f" instead, in {where(send)}"
            )
            return of_ops("wrong-peer", [send.rank], message, [send], rows=[recv.row, send.row])
    return None


def _is_only_early(evidence: Evidence, send: Op) -> bool:
    """Whether its receiver may still come to receive it: it is in a circle of sends; or stuck for something else than
    this rank; or in a collective that this rank has left behind, or to which few ranks have come, so that it is the
    receiver that is astray. Messages to a rank are received in order: if an earlier one waits for that, so does this
    one, which its rank has begun at the same time."""
    held = evidence.blocked.get(send.rank)
    if held is not None and (held.op, held.peer, held.tag) == (send.op, send.peer, send.tag) and held.row < send.row:
        send = held
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

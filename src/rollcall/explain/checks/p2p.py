"""Sends and receives that wait in a circle, have no partner, or differ from their partner."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, of_ops, where
from rollcall.explain.table import Op


def deadlocks(evidence: Evidence) -> Iterator[Finding]:
    """Ranks that wait for each other in a circle of sends and receives."""
    done: set[int] = set()
    for start in evidence.blocked:
        path: list[int] = []
        rank = start
        while (
            rank in evidence.blocked
            and rank not in path
            and rank not in done
            and evidence.blocked[rank].is_point_to_point
        ):
            path.append(rank)
            waited_for = evidence.waits_for(evidence.blocked[rank])
            if len(waited_for) != 1:
                break
            rank = waited_for[0]
        else:
            if rank in path and (finding := _circle(evidence, path[path.index(rank) :])):
                yield finding
                return
        done.update(path)


def _circle(evidence: Evidence, cycle: list[int]) -> Finding | None:
    ops = [evidence.blocked[rank] for rank in cycle]
    if len({op.op for op in ops}) > 1 and len(cycle) == 2:
        return None  # a send and a receive that do not match: another finding says why
    details = ", ".join(f"rank {op.rank} in {where(op)} for rank {op.peer}" for op in ops)
    return of_ops("p2p-deadlock", cycle, f"these ranks wait for each other in a circle: {details}", ops, cycle=cycle)


def unmatched(evidence: Evidence) -> Iterator[Finding]:
    """Sends that nobody receives, receives that nobody sends to, and why."""
    recvs, sends = list(evidence.pairs.unmatched("recv")[:_MANY]), list(evidence.pairs.unmatched("send")[:_MANY])
    stuck = sorted((op for op in recvs if op.is_blocked or op.is_failed), key=lambda op: op.entered_ns)
    for explain in (_by_tag, _by_sender, _by_receiver):
        for recv in stuck:
            if (finding := explain(evidence, recv, sends, recvs)) is not None:
                yield finding
                return
    if stuck:
        recv = stuck[0]
        message = f"rank {recv.rank} waits in {where(recv)} for rank {recv.peer}, which never sends to it"
        yield of_ops("unmatched-recv", [recv.rank], message, [recv])
    elif sends:
        # First the sends whose receiver never receives from this rank: another receiver may only be stuck.
        met, _ = evidence.pairs.matched()
        known = set(zip(evidence.table.rank[met].tolist(), evidence.table.peer[met].tolist(), strict=True))
        send = min(sends, key=lambda op: ((op.rank, op.peer) in known, op.entered_ns))
        message = f"rank {send.rank}'s {where(send)} to rank {send.peer} was never received"
        yield of_ops("unmatched-send", [send.rank], message, [send])


_MANY = 500  # more ops without partner say nothing new


def _by_tag(evidence: Evidence, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """The sender sent, under another tag."""
    for send in sends:
        if (send.rank, send.peer) == (recv.peer, recv.rank) and send.tag != recv.tag:
            message = (
                f"rank {recv.rank} waits in {where(recv)} for tag {recv.tag} of rank {recv.peer}, which sent tag"
                f" {send.tag} in {where(send)}"
            )
            ops = _odd_side(evidence, send, recv, lambda op: op.tag)
            return of_ops("tag-mismatch", {op.rank for op in ops}, message, ops)
    return None


def _by_receiver(evidence: Evidence, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """It waits for a rank that sends nothing to it, while another rank does: it waits for the wrong one."""
    if any((send.rank, send.peer) == (recv.peer, recv.rank) for send in sends):
        return None
    for send in sends:
        if send.peer == recv.rank:
            message = (
                f"rank {recv.rank} waits in {where(recv)} for rank {recv.peer}, but it is rank {send.rank} that sends"
                f" to it, in {where(send)}"
            )
            return of_ops("wrong-peer", [recv.rank], message, [recv])
    return None


def _by_sender(evidence: Evidence, recv: Op, sends: list[Op], recvs: list[Op]) -> Finding | None:
    """The rank it waits for sent to another rank, which does not receive that."""
    for send in sends:
        if send.rank == recv.peer and not any((r.rank, r.peer) == (send.peer, send.rank) for r in recvs):
            message = (
                f"rank {recv.rank} waits in {where(recv)} for rank {recv.peer}, which sends to rank {send.peer}"
                f" instead, in {where(send)}"
            )
            return of_ops("wrong-peer", [send.rank], message, [send])
    return None


def _odd_side(evidence: Evidence, send: Op, recv: Op, read: Callable[[Op], Any]) -> list[Op]:
    """Of two ops that do not match, the one that differs from most others; both if that cannot be decided."""
    others = [evidence.table.get(row) for row in evidence.pairs.rows[:_MANY] if row not in (send.row, recv.row)]
    like_send = sum(read(op) == read(send) for op in others)
    like_recv = sum(read(op) == read(recv) for op in others)
    if len(evidence.run.ranks) < 3 or like_send == like_recv:
        return [send, recv]
    return [recv] if like_send > like_recv else [send]


def mismatches(evidence: Evidence) -> Iterator[Finding]:
    """Sends and receives that match, with different sizes or types."""
    table = evidence.table
    dtypes = np.array([hash(str(each.get("dtypes"))) for each in table.names.signatures])
    sends, recvs = evidence.pairs.matched()
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
        yield of_ops(kind, {op.rank for op in odd}, message, [send, recv])


def _tensor(op: Op) -> str:
    return f"{op.signature.get('shapes')} {op.signature.get('dtypes')}"

"""Sends and receives that belong together, and differ in size or type; and which side of such a pair to look at."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain import source
from rollcall.explain.checks.p2p_waits import MANY
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Effect, Finding, of_ops, where
from rollcall.explain.loading.table import Op


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
        odd = odd_side(evidence, send, recv, lambda op: op.signature.get(field))
        has_stopped = any(op.is_blocked or op.is_failed for op in (send, recv))
        has_stopped = has_stopped or any(
            evidence.is_stuck[op.row] or op.is_failed for op in _after(evidence, send, recv)
        )
        effect: Effect = "stopped" if has_stopped else "wrong"
        known = _skipped_message(evidence, send, recv) or _skipped_exchange(evidence, send, recv)
        finding = known or of_ops(kind, {op.rank for op in odd}, message, [send, recv])
        yield replace(finding, effect=effect)


def _skipped_message(evidence: Evidence, send: Op, recv: Op) -> Finding | None:
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
        odd = send if has_made_more(evidence, send) else recv
        finding = of_ops("unmatched-send", [odd.rank], message, [send, recv])
    elif _comes_first(evidence, send.rank, meant_sends, send):
        meant = table.names.sites[meant_sends[0]]
        message = f"{took}, and not at {meant}: that send was left out, or one receive is too many"
        odd = recv if has_made_more(evidence, recv) else send
        finding = of_ops("unmatched-recv", [odd.rank], message, [recv, send])
    else:
        return None
    return replace(finding, sites=(*finding.sites, *([meant] if meant else [])))


def _skipped_exchange(evidence: Evidence, send: Op, recv: Op) -> Finding | None:
    """The same where nobody has met on these lines before: one of them stands on a line that both sends and receives,
    as a ring does, so it was meant for that line on its peer; and it is past the line of the other."""
    took = f"rank {recv.rank}'s {where(recv)} took what rank {send.rank} sent in {where(send)}"
    if _is_exchange_past(evidence, send, recv):
        message = f"{took}, after the line of the receive: a send was left out there, or this receive is too many"
        odd = recv if has_made_more(evidence, recv) else send
        finding = of_ops("unmatched-recv", [odd.rank], message, [recv, send])
    elif _is_exchange_past(evidence, recv, send):
        message = f"{took}, before the line of the receive: a receive was left out there, or this send is too many"
        odd = send if has_made_more(evidence, send) else recv
        finding = of_ops("unmatched-send", [odd.rank], message, [send, recv])
    else:
        return None
    return replace(finding, since_ns=min(send.entered_ns, recv.entered_ns))


def _is_exchange_past(evidence: Evidence, op: Op, other: Op) -> bool:
    table, (start, end) = evidence.table, evidence.table.spans[op.rank]
    ops = {table.get(start + row).op for row in np.flatnonzero(table.site[start:end] == table.site[op.row])[:MANY]}
    if op.site is None or other.site is None or not {"send", "recv"} <= ops:
        return False
    return source.is_past(op.site, other.site)


def _comes_first(evidence: Evidence, rank: int, lines: NDArray[Any], op: Op) -> bool:
    """Whether a rank was on one of these lines before it first came to the line of the op."""
    start, end = evidence.table.spans[rank]
    site = evidence.table.site[start:end]
    return bool(np.isin(site[: np.argmax(site == evidence.table.site[op.row])], lines).any())


def has_made_more(evidence: Evidence, op: Op) -> bool:
    """Whether its rank has made more ops on its line than any other rank."""
    table = evidence.table
    counts = np.bincount(table.rank[table.site == table.site[op.row]])
    return bool(counts[op.rank] > np.delete(counts, op.rank).max(initial=0) > 0)


def _after(evidence: Evidence, send: Op, recv: Op) -> list[Op]:
    """The later ops between the two ranks: bytes that were not expected are taken for the next message."""
    table, rows = evidence.table, evidence.pairs.rows
    of_two = np.isin(table.rank[rows], (send.rank, recv.rank)) & np.isin(table.peer[rows], (send.rank, recv.rank))
    return [table.get(row) for row in rows[of_two & (table.entered_ns[rows] > send.entered_ns)][:MANY]]


def _tensor(op: Op) -> str:
    return f"{op.signature.get('shapes')} {op.signature.get('dtypes')}"


def odd_side(evidence: Evidence, send: Op, recv: Op, read: Callable[[Op], Any]) -> list[Op]:
    """Returns which of two ops that do not match differs from what other ranks did in the same turn on the same lines,
    or else from most others; both if that cannot be decided."""
    if len(evidence.run.ranks) < 3:
        return [send, recv]
    table, rows = evidence.table, evidence.pairs.rows
    alike = [table.get(row) for op in (send, recv) for row in _same_turn(evidence, op)]
    others = [table.get(row) for row in rows[:MANY] if row not in (send.row, recv.row)]
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

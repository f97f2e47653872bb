"""What all dumps together say about times. One dump alone says when its rank asked for an op, and roughly when torch
noticed its end: nccl's ops are queued, and a thread looks every 100 ms which of them are over.

- A call ends on all ranks at about the same time: when the first of them noticed it.
- An op begins when its rank has asked for it and the op before it, of the same group, is over. With
  TORCH_NCCL_ENABLE_TIMING=1, the dump tells how long each GPU was in it: that long before its end.
- Of the ops that are not over, the first holds up its rank, with those of its batch; those behind it are only queued.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.dumps import files
from rollcall.explain.dumps.entries import Dump
from rollcall.record import ring_format

_Times = NDArray[np.int64]
_ROOTED = [ring_format.OP[name] for name in ("broadcast", "reduce", "gather", "scatter")]


@dataclass
class Rows:
    """The records of all dumps in columns, dump by dump."""

    rank: NDArray[np.int64]
    op: NDArray[np.int64]
    group: NDArray[np.int64]
    seq: NDArray[np.int64]
    peer: NDArray[np.int64]
    created_ns: _Times
    completed_ns: _Times
    timeout_ns: _Times
    took_ns: _Times
    is_done: NDArray[np.bool_]
    is_p2p: NDArray[np.bool_]

    @classmethod
    def of(cls, dumps: list[Dump]) -> "Rows":
        def column(name: str) -> NDArray[np.int64]:
            return np.concatenate([dump.records[name].astype(np.int64) for dump in dumps])

        return cls(
            rank=np.repeat([dump.rank for dump in dumps], [len(dump.records) for dump in dumps]),
            op=column("op"),
            group=column("group"),
            seq=column("seq"),
            peer=column("peer"),
            created_ns=column("entered_ns"),
            completed_ns=column("completed_ns"),
            timeout_ns=np.concatenate([dump.timeout_ns for dump in dumps]),
            took_ns=np.concatenate([dump.took_ns for dump in dumps]),
            is_done=np.concatenate([dump.is_done for dump in dumps]),
            is_p2p=np.concatenate([dump.is_p2p for dump in dumps]),
        )

    def calls(self) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
        """The rows of collectives, ordered by call; where each call begins; the call of each."""
        rows = np.flatnonzero(~self.is_p2p)
        order = rows[np.lexsort((self.seq[rows], self.group[rows]))]
        is_new = (np.diff(self.group[order], prepend=-1) != 0) | (np.diff(self.seq[order], prepend=-1) != 0)
        return order, np.flatnonzero(is_new), np.cumsum(is_new) - 1


def latest_and_earliest(rows: Rows) -> tuple[int, int] | None:
    """The two rows of a call that lie further apart than its timeout allows, twice over: ranks of one job would not
    have waited so long."""
    order, starts, call = rows.calls()
    if not len(order):
        return None
    created_ns = rows.created_ns[order]
    spread_ns = np.maximum.reduceat(created_ns, starts) - np.minimum.reduceat(created_ns, starts)
    timeout_ns = np.maximum.reduceat(rows.timeout_ns[order], starts)
    apart = np.flatnonzero((timeout_ns > 0) & (spread_ns > 2 * timeout_ns))
    if not len(apart):
        return None
    members = order[call == apart[0]]
    by_time = members[np.argsort(rows.created_ns[members])]
    return int(by_time[-1]), int(by_time[0])


def reopen(dumps: list[Dump], groups: list[tuple[str, tuple[int, ...]]]) -> None:
    """Where the recorder does not tell when ops ended, one that failed looks like one that is over. A collective to
    which a rank never came cannot have ended well: it is open. Of broadcasts and the like that is not certain."""
    rows = Rows.of(dumps)
    order, starts, call = rows.calls()
    dumped = {dump.rank for dump in dumps}
    members = np.array([0, *(len(dumped.intersection(ranks)) for _, ranks in groups)])
    group, seq = rows.group[order[starts]], rows.seq[order[starts]]
    is_short = (np.diff(starts, append=len(order)) < members[group]) & (seq >= _first_known(rows, len(members))[group])
    is_open = np.zeros(len(rows.rank), dtype=np.bool_)
    is_open[order] = is_short[call] & ~np.isin(rows.op[order], _ROOTED) & (rows.completed_ns[order] == 0)
    for dump, mine in parts(dumps, is_open):
        dump.is_done = dump.is_done & ~mine


def _first_known(rows: Rows, groups: int) -> NDArray[np.int64]:
    """By group: the first collective that is in the dumps of all ranks that have any of the group."""
    found = np.zeros(groups, dtype=np.int64)
    collectives = np.flatnonzero(~rows.is_p2p)
    order = collectives[np.lexsort((rows.seq[collectives], rows.rank[collectives], rows.group[collectives]))]
    is_first = (np.diff(rows.group[order], prepend=-1) != 0) | (np.diff(rows.rank[order], prepend=-1) != 0)
    np.maximum.at(found, rows.group[order[is_first]], rows.seq[order[is_first]])
    return found


def parts(dumps: list[Dump], column: NDArray[Any]) -> Iterator[tuple[Dump, NDArray[Any]]]:
    """Each dump with its part of a column of all rows."""
    ends = np.cumsum([len(dump.records) for dump in dumps])
    return zip(dumps, np.split(column, ends[:-1]), strict=True)


def settle(dumps: list[Dump], young_ns: int) -> None:
    """Set the times of all records, and mark which ops are queued behind another. Open ops that were asked for after
    `young_ns` are taken for ops in flight."""
    rows = Rows.of(dumps)
    completed_ns = np.where(rows.is_done, _ends(rows), 0)
    before = _row_before(_channels(rows))
    entered_ns = np.maximum(rows.created_ns, np.where(before >= 0, completed_ns[before], 0))
    entered_ns = np.where(rows.took_ns > 0, np.maximum(entered_ns, completed_ns - rows.took_ns), entered_ns)
    entered_ns = np.where(rows.is_done, np.minimum(entered_ns, completed_ns), entered_ns)
    is_queued = _is_behind(dumps, rows) | (~rows.is_done & (rows.created_ns > young_ns))
    columns = {
        "entered_ns": entered_ns,
        "completed_ns": completed_ns,
        "flags": np.where(is_queued, ring_format.ASYNC, 0),
        "issued_ns": np.where(is_queued, rows.created_ns, 0),
    }
    for name, column in columns.items():
        for dump, mine in parts(dumps, column):
            dump.records[name] = mine
    for dump in dumps:
        open_ns = dump.records["entered_ns"][~dump.is_done]
        dump.records["entered_ns"][~dump.is_done] = np.maximum.accumulate(open_ns)


def without_what_others_hold_up(dumps: list[Dump]) -> None:
    """Drop collectives that are queued behind an op of another group, or a send or receive: they have not begun. A
    program that waits for each op has its GPU do all of them one after the other; whether it waits, the recorder does
    not tell."""
    rows = Rows.of(dumps)
    for dump, is_behind in list(parts(dumps, _is_behind(dumps, rows))):
        holding = ~dump.is_done & ~is_behind & ~dump.is_p2p
        is_of_another = ~np.isin(dump.records["group"], dump.records["group"][holding])
        dump.keep(~(is_behind & ~dump.is_p2p & is_of_another))


def _ends(rows: Rows) -> _Times:
    """When each op was over: as soon as one rank noticed it; where nobody did, when the last rank had come."""
    ends_ns = np.where(rows.completed_ns > 0, rows.completed_ns, rows.created_ns)
    order, starts, call = rows.calls()
    if len(order):
        noticed_ns = np.where(rows.completed_ns[order] > 0, rows.completed_ns[order], np.iinfo(np.int64).max)
        first_ns = np.minimum.reduceat(noticed_ns, starts)
        arrived_ns = np.maximum.reduceat(rows.created_ns[order], starts)
        ends_ns[order] = np.where(first_ns < np.iinfo(np.int64).max, first_ns, arrived_ns)[call]
    return np.maximum(ends_ns, rows.created_ns + 1)


def _channels(rows: Rows) -> NDArray[np.int64]:
    """Ops of one rank with one number are done one after the other: collectives of a group, sends to and receives from
    one peer."""
    peer = np.where(rows.is_p2p, rows.peer + 2, 0)
    ranks, groups = int(rows.rank.max(initial=0)) + 1, int(rows.group.max(initial=0)) + 1
    numbers: NDArray[np.int64] = (rows.group + groups * peer) * ranks + rows.rank
    return numbers


def _row_before(channel: NDArray[np.int64]) -> NDArray[np.intp]:
    """Per row: the row before it of the same channel; -1 if it is the first."""
    order = np.argsort(channel, kind="stable")
    before = np.full(len(channel), -1, dtype=np.intp)
    same = channel[order[1:]] == channel[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _is_behind(dumps: list[Dump], rows: Rows) -> NDArray[np.bool_]:
    """Ops that are not over, behind the first one of their rank and those of its batch."""
    batch = np.concatenate([dump.batch for dump in dumps])
    open_rows = np.flatnonzero(~rows.is_done)
    _, first, place = np.unique(rows.rank[open_rows], return_index=True, return_inverse=True)
    is_behind = np.zeros(len(rows.rank), dtype=np.bool_)
    is_behind[open_rows] = batch[open_rows] != batch[open_rows[first]][place]
    return is_behind


def paired_from_the_end(dumps: list[Dump]) -> None:
    """Sends and receives that are over have had their partner, even if its recorder has overwritten it: the newest
    belong to the newest, and what is left over on one side is dropped. Where both sides are whole, nothing is: the
    partner of one that is over may be of a batch that is not."""
    rows = Rows.of(dumps)
    done = np.flatnonzero(rows.is_p2p & rows.is_done & (rows.peer >= 0))
    is_cut = _cut_groups(rows)
    done = done[is_cut[rows.group[done], rows.rank[done]] | is_cut[rows.group[done], rows.peer[done]]]
    is_send = rows.op[done] == ring_format.OP["send"]
    sender = np.where(is_send, rows.rank[done], rows.peer[done])
    receiver = np.where(is_send, rows.peer[done], rows.rank[done])
    ranks = int(max(sender.max(initial=0), receiver.max(initial=0))) + 1
    _, route = np.unique((rows.group[done] * ranks + sender) * ranks + receiver, return_inverse=True)
    sides = [np.bincount(route[is_send == side], minlength=int(route.max(initial=-1)) + 1) for side in (False, True)]
    most = np.minimum(*sides)
    from_end = _place_from_end(route * 2 + is_send)
    dropped = np.zeros(len(rows.rank), dtype=np.bool_)
    dropped[done] = from_end >= most[route]
    for dump, mine in list(parts(dumps, dropped)):
        dump.keep(~mine)


def _cut_groups(rows: Rows) -> NDArray[np.bool_]:
    """By group and rank: whether the first of its sends and receives there is not in the dump. torch counts them from 1
    on."""
    p2p = np.flatnonzero(rows.is_p2p)
    shape = int(rows.group.max(initial=0)) + 1, int(max(rows.rank.max(initial=0), rows.peer.max(initial=0))) + 1
    first = np.full(shape, np.iinfo(np.int64).max)
    np.minimum.at(first, (rows.group[p2p], rows.rank[p2p]), rows.seq[p2p])
    return np.asarray(first > 1)


def number_channels(dumps: list[Dump]) -> None:
    """Number the sends, and the receives, of each group and peer from 1 on, as rings do. torch counts all of a group
    together, and those of a batch as one, so that the numbers of both sides differ."""
    for dump in dumps:
        rows = np.flatnonzero(dump.is_p2p)
        records = dump.records[rows]
        channel = (records["group"].astype(np.int64) * len(ring_format.OPS) + records["op"]) * files.MOST_RANKS
        numbers = _place_from_end((channel + records["peer"])[::-1])[::-1] + 1
        dump.records["seq"][rows] = numbers


def _place_from_end(side: NDArray[Any]) -> NDArray[np.intp]:
    """Per row: how many of its side come after it."""
    order = np.argsort(side[::-1], kind="stable")
    ordered = side[::-1][order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    place = np.empty(len(side), dtype=np.intp)
    place[order] = np.arange(len(side)) - np.repeat(starts, np.diff(starts, append=len(side)))
    return place[::-1]


def without_later_than(dumps: list[Dump], ns: int, in_flight_ns: int) -> None:
    """Drop open ops that were asked for after this moment, from which on not all ranks were looked at; and sends and
    receives that are merely in flight, since their partners may not have come yet."""
    for dump in dumps:
        entered_ns = dump.records["entered_ns"].astype(np.int64)
        dump.keep(dump.is_done | (entered_ns <= np.where(dump.is_p2p, ns - in_flight_ns, ns)))


def held_by_lost(dumps: list[Dump]) -> Iterator[int]:
    """Ranks whose oldest op that is left is not over, though their recorder has overwritten older ones: one of these
    may hold it up. Not if the call before it, of its group, is over on another rank."""
    rows = Rows.of(dumps)
    done = np.flatnonzero(~rows.is_p2p & rows.is_done)
    last_done = np.zeros(int(rows.group.max(initial=0)) + 1, dtype=np.int64)
    np.maximum.at(last_done, rows.group[done], rows.seq[done])
    for dump in dumps:
        if dump.overwritten and not dump.has_only_open and not dump.is_done[:1].all():
            oldest = dump.records[0]
            if dump.is_p2p[0] or last_done[oldest["group"]] + 1 < oldest["seq"]:
                yield dump.rank


def without_half_exchanges(dumps: list[Dump]) -> None:
    """Drop sends and receives from dumps that have only open ops: one that is over on the other side is not there."""
    for dump in dumps:
        if dump.has_only_open:
            dump.keep(~dump.is_p2p)

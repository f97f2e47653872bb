"""A run as stretches of time: what each thread of each rank was in, for whom it waited, what was in flight meanwhile.

On one track slices lie in each other or beside each other, whatever the rings say: nothing that draws has to check.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.evidence import View
from rollcall.explain.load import Rank
from rollcall.explain.table import Op, Table
from rollcall.explain.waits import blocked_since_ns, is_waited_in, last_rows

# An async op that is waited for at once is one stretch: dist.send is an isend and its wait().
_AT_ONCE_NS = 200_000
_NOTABLE_NS = 20_000  # shorter waits are how long a call takes, not who is late


@dataclass(frozen=True)
class Slice:
    """One stretch. `op` is what it is about: the op that a rank is in, or waits for; an event."""

    start_ns: int
    end_ns: int
    name: str
    sort: str  # op, wait, phase, sample
    op: Op


@dataclass(frozen=True)
class Arrow:
    """From the op of the last to arrive, when it did, to one that waited for it until then."""

    last: Op
    waiting: Op


@dataclass(frozen=True)
class Lane:
    """One rank: its slices by thread; phases of its main thread, and where that was seen; who was late for whom."""

    rank: Rank
    threads: dict[int, list[Slice]]
    phases: list[Slice]
    samples: list[Slice]
    in_flight: list[Slice]
    arrows: list[Arrow]
    end_ns: int  # the last that is known of it


def lanes(view: View) -> Iterator[Lane]:
    """Rank by rank."""
    table = view.table
    if not len(table):
        return
    late = _latecomers(view)
    run_end_ns = max(int(table.entered_ns.max()), int(table.completed_ns.max()))
    for rank in view.run.ranks.values():
        yield _lane(table, rank, late, run_end_ns)


@dataclass(frozen=True)
class _Late:
    """Per row: from when its rank was blocked, until when for another, and that one's row; -1: for nobody."""

    since_ns: NDArray[np.int64]
    until_ns: NDArray[np.int64]
    row: NDArray[np.int64]


def _latecomers(view: View) -> _Late:
    table, calls = view.table, view.calls
    since = blocked_since_ns(table)
    until, row = np.zeros(len(table), np.int64), np.full(len(table), -1, np.int64)
    if len(calls) and view.run.is_one_clock:
        chosen = np.repeat(is_waited_in(calls), calls.sizes)
        rows = calls.rows[chosen]
        until[rows] = np.repeat(calls.most(table.entered_ns), calls.sizes)[chosen]
        row[rows] = np.repeat(last_rows(calls), calls.sizes)[chosen]
    for mine, theirs in (view.pairs.met(), view.pairs.met()[::-1]) if view.run.is_one_clock else ():
        until[mine], row[mine] = table.entered_ns[theirs], theirs
    # Between hosts, a wait that is shorter than the clocks are sure of is none that can be told. And not all ops need
    # all ranks: the root of a broadcast may be done before the others have come.
    least_ns = max(_NOTABLE_NS, view.run.clock_error_ns)
    is_done_before = (table.completed_ns > 0) & (table.completed_ns <= until)
    row[(until - np.minimum(since, until) <= least_ns) | is_done_before] = -1
    return _Late(since, until, row)


def _lane(table: Table, rank: Rank, late: _Late, run_end_ns: int) -> Lane:
    end_ns = _end(rank, run_end_ns)
    threads: dict[int, list[Slice]] = defaultdict(list)
    in_flight: list[Slice] = []
    arrows: list[Arrow] = []
    ops = list(rank.ops)
    following: dict[int, int] = {}  # by thread: when the op after this one began
    for op in reversed(ops):
        slices = _of_op(op, end_ns, following.get(op.thread, end_ns))
        if op.is_async and (len(slices) > 1 or not op.waited_ns):
            in_flight.append(Slice(op.entered_ns, op.completed_ns or end_ns, op.op, "op", op))
        if (row := int(late.row[op.row])) >= 0:
            last = table.get(row)
            slices.append(_waiting(slices[-1], last, int(late.since_ns[op.row]), int(late.until_ns[op.row])))
            arrows.append(Arrow(last, op))
        threads[op.thread] += slices
        following[op.thread] = op.entered_ns
    events = [event for event in rank.events if not event.thread]
    phases = [_of_event(event, event.phase, end_ns) for event in events if event.op in ("phase", "ddp_forward")]
    samples = [_of_event(event, f"at {event.site}", end_ns) for event in events if event.op == "sample"]
    return Lane(
        rank,
        {thread: _nested(found) for thread, found in sorted(threads.items())},
        _nested(phases),
        _nested(samples),
        sorted(in_flight, key=lambda each: each.start_ns),
        arrows[::-1],
        end_ns,
    )


def _end(rank: Rank, run_end_ns: int) -> int:
    """The last that is known of it; of one that still sits in an op, the end of the run."""
    if rank.last is not None and rank.last.is_blocked and not rank.has_ended:
        return run_end_ns
    known = [rank.ended_ns]
    for ops in (rank.ops, rank.events):
        known += [max(op.entered_ns, op.completed_ns) for op in ops[-1:]]
    return max(known)


def _of_event(event: Op, name: str, end_ns: int) -> Slice:
    return Slice(event.entered_ns, event.completed_ns or end_ns, name, event.op, event)


def _of_op(op: Op, end_ns: int, next_ns: int) -> list[Slice]:
    """Where its thread is in it: one stretch, or its issue and its wait()."""
    ended_ns = op.completed_ns or (min(next_ns, end_ns) if op.is_failed else end_ns)
    if not op.is_async:
        return [Slice(op.entered_ns, ended_ns, op.op, "op", op)]
    issued_ns = op.issued_ns or op.entered_ns
    if not op.waited_ns:
        return [Slice(op.entered_ns, issued_ns, op.op, "op", op)]
    if op.waited_ns - issued_ns < _AT_ONCE_NS and next_ns >= ended_ns:
        return [Slice(op.entered_ns, ended_ns, op.op, "op", op)]
    return [
        Slice(op.entered_ns, issued_ns, op.op, "op", op),
        Slice(op.waited_ns, ended_ns, f"wait() of {op.op}", "op", op),
    ]


def _waiting(outer: Slice, last: Op, since_ns: int, until_ns: int) -> Slice:
    """The part of it in which the rank did nothing but wait for the last."""
    return Slice(
        max(since_ns, outer.start_ns), min(until_ns, outer.end_ns), f"waiting for rank {last.rank}", "wait", outer.op
    )


def _nested(slices: list[Slice]) -> list[Slice]:
    """In order of time, the outer first; what sticks out of the one it began in is cut off there."""
    found: list[Slice] = []
    open_: list[int] = []  # when the slices that we are in end
    for each in sorted(slices, key=lambda s: (s.start_ns, -s.end_ns, s.sort != "op")):
        while open_ and open_[-1] <= each.start_ns:
            open_.pop()
        end_ns = max(each.start_ns, min([each.end_ns, *open_[-1:]]))
        found.append(each if end_ns == each.end_ns else replace(each, end_ns=end_ns))
        open_.append(end_ns)
    return found

"""A run as intervals on tracks: what each thread of each rank was in, for whom it waited, what was in flight.

On one track slices are nested or disjoint, whatever the rings say, as viewers require.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.load import Rank
from rollcall.explain.loading.table import Op
from rollcall.protocol.rank_ranges import ranks_in_words

# An async op that is waited for at once is one slice: dist.send is an isend and its wait().
_AT_ONCE_NS = 200_000
_NOTABLE_NS = 20_000  # a shorter wait is the duration of a call, and no rank is late


@dataclass(frozen=True)
class Slice:
    """One interval. `op` is the op or the event that it shows."""

    start_ns: int
    end_ns: int
    name: str
    sort: str  # op, wait, phase, sample
    op: Op


@dataclass(frozen=True)
class Arrow:
    """Points from the op of the last to arrive to an op that waited for it."""

    last: Op
    waiting: Op


@dataclass(frozen=True)
class Lane:
    """One rank: the slices of its threads, phases and samples of its main thread, and arrows to its waits."""

    rank: Rank
    threads: dict[int, list[Slice]]
    phases: list[Slice]
    samples: list[Slice]
    in_flight: list[Slice]
    arrows: list[Arrow]
    end_ns: int  # its last known moment


def lanes(evidence: Evidence) -> Iterator[Lane]:
    """Rank by rank."""
    if len(evidence.table):
        for rank in evidence.run.ranks.values():
            yield _lane(evidence, rank)


def _lane(evidence: Evidence, rank: Rank) -> Lane:
    end_ns = _end(rank, evidence.intervals.end_ns)
    threads: dict[int, list[Slice]] = defaultdict(list)
    in_flight: list[Slice] = []
    arrows: list[Arrow] = []
    ops = list(rank.ops)
    following: dict[int, int] = {}  # by thread: when the op after this one began
    for op in reversed(ops):
        slices = _of_op(op, end_ns, following.get(op.thread, end_ns))
        if op.is_async and (len(slices) > 1 or not op.waited_ns):
            in_flight.append(Slice(op.entered_ns, op.completed_ns or end_ns, op.op, "op", op))
        if (waiting := _waiting(evidence, slices[-1])) is not None:
            slices.append(waiting)
            last = int(evidence.intervals.last[op.row])
            arrows += [Arrow(evidence.table.get(last), op)] if last >= 0 else []
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
    """Its last known moment; of a rank that is blocked in an op, the end of the run."""
    if rank.last is not None and rank.last.is_blocked and not rank.has_ended:
        return run_end_ns
    known = [rank.ended_ns]
    for ops in (rank.ops, rank.events):
        known += [max(op.entered_ns, op.completed_ns) for op in ops[-1:]]
    return max(known)


def _of_event(event: Op, name: str, end_ns: int) -> Slice:
    return Slice(event.entered_ns, event.completed_ns or end_ns, name, event.op, event)


def _of_op(op: Op, end_ns: int, next_ns: int) -> list[Slice]:
    """When its thread is in the op: one slice, or one of its issue and one of its wait()."""
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


def _waiting(evidence: Evidence, outer: Slice) -> Slice | None:
    """The part of a slice in which its rank waited for others; None if that is too short to be sure."""
    op, found = outer.op, evidence.intervals
    start_ns, end_ns = int(found.blocked_ns[op.row]), int(found.arrived_ns[op.row])
    # Between hosts, a wait that is shorter than the error of the clocks may be none.
    if end_ns - start_ns <= max(_NOTABLE_NS, evidence.run.clock_error_ns):
        return None
    last = int(found.last[op.row])
    for_ranks = [int(evidence.table.rank[last])] if last >= 0 else evidence.waits_for(op)
    if not for_ranks:
        return None
    name = f"waiting for {ranks_in_words(for_ranks)}"
    return Slice(max(start_ns, outer.start_ns), min(end_ns, outer.end_ns), name, "wait", op)


def _nested(slices: list[Slice]) -> list[Slice]:
    """Orders slices by time, the outer first; a slice that ends after the one it began in is cut there."""
    found: list[Slice] = []
    open_: list[int] = []  # the ends of the slices around this one
    for each in sorted(slices, key=lambda s: (s.start_ns, -s.end_ns, s.sort != "op")):
        while open_ and open_[-1] <= each.start_ns:
            open_.pop()
        end_ns = max(each.start_ns, min([each.end_ns, *open_[-1:]]))
        found.append(each if end_ns == each.end_ns else replace(each, end_ns=end_ns))
        open_.append(end_ns)
    return found

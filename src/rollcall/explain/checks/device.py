"""What only torch's Flight Recorder knows: ops that all ranks asked for and that the device never finished; and ranks
that left no dump."""

from collections.abc import Iterator

import numpy as np

from rollcall.explain.checks import collectives
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding, of_call, of_ops, wait_in, where
from rollcall.explain.loading.table import Op
from rollcall.explain.matching import Call
from rollcall.protocol.rank_ranges import ranks_in_words


def stuck_on_device(evidence: Evidence) -> Iterator[Finding]:
    """The first op that all its ranks asked for and that is not over. If ranks disagree in the call that holds them up,
    the device cannot finish it."""
    dumps = _dumps_of(evidence)
    if dumps is None or any(finding.effect == "stopped" for finding in collectives.mismatches(dumps)):
        return
    table, calls = dumps.table, dumps.calls
    is_there = table.is_blocked | (table.completed_ns > 0)  # else it is queued behind another op
    for call in calls.where(calls.has_all & calls.all(is_there) & calls.any(table.is_blocked)):
        is_hidden = not dumps.run.held_by_lost.isdisjoint(call.ops)
        if not is_hidden and _is_on_device(next(iter(call.ops.values()))):
            yield _stuck(call, dumps.run.not_begun)
            return
    if any(op.is_blocked for name in ("send", "recv") for op in dumps.pairs.unmatched(name)):
        return  # nccl ends the sends and receives of a batch together: those that have a partner wait for this one
    sends, recvs = dumps.pairs.matched()
    differs = table.size_bytes[sends] != table.size_bytes[recvs]
    if (differs & (table.is_blocked[sends] | table.is_blocked[recvs])).any():
        return  # so do they for one that does not fit
    both = table.is_blocked[sends] & table.is_blocked[recvs]
    for send, recv in ((table.get(sends[place]), table.get(recvs[place])) for place in np.flatnonzero(both)[:1]):
        if _is_on_device(send) and dumps.run.held_by_lost.isdisjoint((send.rank, recv.rank)):
            message = f"rank {send.rank}'s {where(send)} and rank {recv.rank}'s {where(recv)} were both asked for"
            message += ", and neither has completed: they are stuck on the device"
            yield of_ops("stuck-on-device", [send.rank, recv.rank], message, [send, recv])


def _dumps_of(evidence: Evidence) -> Evidence | None:
    """The dumps themselves, or those beside the rings of a run that is stuck. A running job has open ops, too, and
    one that went on after a hang has left dumps of that."""
    if evidence.run.is_from_dumps:
        return evidence if evidence.run.outcome == "hung" else None
    return evidence.device if evidence.run.outcome != "ok" and evidence.blocked else None


def _is_on_device(op: Op) -> bool:
    return bool(op.signature.get("device") == "cuda")


def _stuck(call: Call, not_begun: frozenset[int]) -> Finding:
    stuck = call.blocked
    late = [rank for rank in stuck if rank in not_begun]
    done = [rank for rank in call.ops if call.ops[rank].completed_ns]
    first = call.ops[stuck[0]]
    who = f"all {len(call.ops)} ranks" if len(call.ops) > 1 else f"rank {stuck[0]}"
    completed = f"it has completed on {ranks_in_words(done)} only" if done else "it has not completed on any of them"
    message = (
        f"{who} of group {call.group.name} asked for {where(first)}, call {call.seq}, and {completed}: it is stuck on"
        f" the device"
    )
    ranks = stuck if done else list(call.ops)
    if 0 < len(late) < len(stuck):  # the others' devices wait in it for theirs
        whose = "the GPU of" if len(late) == 1 else "the GPUs of"
        has = "has" if len(late) == 1 else "have"
        message += f"; {whose} {ranks_in_words(late)} {has} not begun it, and those of the others have"
        ranks = late
    return of_call("stuck-on-device", call, ranks, message, [first])


def ranks_without_dump(evidence: Evidence) -> Iterator[Finding]:
    """Ranks wait for one that left no dump: it ended, or could not write one."""
    run, calls = evidence.run, evidence.calls
    if not run.is_from_dumps or run.outcome != "hung":
        return
    for call in calls.where(~calls.has_all & calls.any(evidence.table.is_blocked)):
        if not any(rank in run.ranks for rank in call.missing):
            waiting = [call.ops[rank] for rank in call.blocked]
            gone = ranks_in_words(call.missing)
            they = "they" if len(call.missing) > 1 else "it"
            message = f"{wait_in(waiting)}; of {gone} there is no dump: {they} ended before, or never came to write one"
            yield of_call("missing-rank", call, call.missing, message, waiting)
            return

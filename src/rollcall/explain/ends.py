"""How ranks ended: by themselves, or because of what another rank did."""

import signal
from typing import TYPE_CHECKING

from rollcall.explain.loading.load import Rank
from rollcall.explain.loading.table import Op, Site

if TYPE_CHECKING:
    from rollcall.explain.evidence import Evidence
    from rollcall.explain.matching import Call

_RECENT = 64  # ops that may be in flight at once: which of them failed, is among the newest


def was_killed(rank: Rank) -> bool:
    return rank.exit_code is not None and rank.exit_code < 0


def failed_by_itself(evidence: "Evidence", rank: Rank) -> bool:
    """Its program raised an error, and not because another rank died, or did not come."""
    return bool(rank.error) and not is_consequence(evidence, rank)


def died_by_itself(evidence: "Evidence", rank: Rank) -> bool:
    """Its death needs no other rank's to explain it. A rank that aborts in an op, as gloo does, may have no part in
    that: a signal that comes from outside has."""
    if was_killed(rank):
        return not _aborted_out_of_step(evidence, rank)
    return failed_by_itself(evidence, rank) or exited_badly(evidence, rank)


def _aborted_out_of_step(evidence: "Evidence", rank: Rank) -> bool:
    """Whether it aborted in an op, while it and another rank waited for each other in different ops: then gloo has
    taken the bytes of one op for those of the other."""
    op = evidence.blocked.get(rank.number)
    if op is None or rank.exit_code != -signal.SIGABRT:
        return False
    others = [evidence.blocked[other] for other in evidence.waits_for(op) if other in evidence.blocked]
    return any(rank.number in evidence.waits_for(other) for other in others)


def exited_badly(evidence: "Evidence", rank: Rank) -> bool:
    """By sys.exit or os._exit with another code than 0, and not because another rank died, or did not come."""
    has_exited = not rank.error and rank.exit_site is not None and (rank.exit_code or 0) > 0
    return has_exited and not is_consequence(evidence, rank)


def is_consequence(evidence: "Evidence", rank: Rank) -> bool:
    """Whether its error is the consequence of another rank's: its op failed because that rank did not come, or died."""
    last = last_failed(rank)
    if last is None:
        return raised_in_forward(rank) and any(
            _keeps_from_forward(evidence, other, rank) for other in _others(evidence, rank)
        )
    if failed_for_others(last) and _others_are_stuck(evidence, last):
        return True
    if failed_for_others(last) and any(other in evidence.run.ranks for other in evidence.waits_for(last)):
        return True
    call = evidence.calls.of(last)
    if last.op == "init" and call is not None and is_init_lost(call):
        return True
    absent = [other for other in evidence.waits_for(last) if other in evidence.run.ranks]
    if any(evidence.has_ended(other) or other in evidence.blocked for other in absent):
        return True
    return any(_died_before(other, rank) for other in _others(evidence, rank))


def _others(evidence: "Evidence", rank: Rank) -> list[Rank]:
    return [other for other in evidence.run.ranks.values() if other.number != rank.number]


def raised_in_forward(rank: Rank) -> bool:
    """Whether its last forward of a DDP module raised, and not the code of the module, whose lines would be on the
    traceback. DDP's reducer exchanges its buckets there in C++, which is no op that is recorded."""
    done = [event for event in rank.events[-_RECENT:] if event.op not in ("sample", "exception", "destroy")]
    if not done or done[-1].op != "ddp_forward":
        return False
    has_gone_on = rank.last is not None and rank.last.entered_ns > done[-1].entered_ns
    return not has_gone_on and raised_at(rank, done[-1].site)


def raised_at(rank: Rank, site: Site | None) -> bool:
    """Whether a rank raised its error on a line, in the same calls. A traceback begins at the function that caught the
    error: the callers of that one are unknown."""
    raised, chain = (
        [(each.file, each.line) for each in found.chain] if found else [] for found in (rank.error_site, site)
    )
    return bool(raised) and chain[: len(raised)] == raised


def _keeps_from_forward(evidence: "Evidence", other: Rank, rank: Rank) -> bool:
    """Whether the other rank was gone before, and never came to this forward. It may have made as many forwards as
    this rank, and have left out a backward before: what counts is what came after the last average that both made."""
    if not _died_before(other, rank):
        return False
    average = evidence.last_averages.get(rank.number)
    if average is None or other.number not in average.ops:
        return evidence.forwards[other.number] < evidence.forwards[rank.number]
    return evidence.forwards_since(average, other.number) < evidence.forwards_since(average, rank.number)


def is_init_lost(call: "Call") -> bool:
    """Whether all ranks came to init_process_group, and some got through: then it fails on the others since one that
    got through has ended meanwhile."""
    return not call.missing and any(op.completed_ns for op in call.ops.values())


def last_failed(rank: Rank) -> Op | None:
    return next((op for op in reversed(rank.ops[-_RECENT:]) if op.is_failed), None)


def failed_for_others(op: Op) -> bool:
    """Whether an op failed for what other ranks did, or did not do: it had been issued before it failed. A barrier has
    no arguments of its own that could be wrong."""
    return op.is_failed and (op.issued_ns > 0 or op.op == "barrier")


def was_handled(evidence: "Evidence", op: Op) -> bool:
    """Whether the program has dealt with the failure of an op: its rank ended well, or its thread has begun and
    completed another op since. So a program looks with a short time limit whether something has come. An async op fails
    in its wait: what was begun before says nothing."""
    rank, table = evidence.run.ranks[op.rank], evidence.table
    if not op.is_failed or rank.exit_code == 0:
        return op.is_failed
    failed_ns = op.waited_ns if op.is_async else op.entered_ns
    later = rank.ops.rows[rank.ops.rows > op.row]
    later = later[(table.entered_ns[later] > failed_ns) & (table.thread[later] == op.thread)]
    return failed_ns > 0 and bool((table.completed_ns[later] > 0).any())


def _others_are_stuck(evidence: "Evidence", op: Op) -> bool:
    """Whether the call failed or hangs on other ranks, too: then the call failed, not this rank."""
    call = evidence.calls.of(op)
    return call is not None and any(
        other.is_blocked or other.is_failed for rank, other in call.ops.items() if rank != op.rank
    )


def _died_before(other: Rank, rank: Rank) -> bool:
    if was_killed(other):
        return True
    died_in_op = other.last is not None and other.last.is_failed
    return bool(other.ended_ns) and other.ended_ns < rank.ended_ns and not died_in_op

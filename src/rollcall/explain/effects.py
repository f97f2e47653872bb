"""What a disagreement between ranks has done to the run."""

from rollcall.explain.ends import failed_by_itself, raised_at
from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Effect
from rollcall.explain.loading.table import Op
from rollcall.explain.matching import Call


def effect_of_call(evidence: Evidence, call: Call) -> Effect:
    """A call on which ranks disagree has stopped the run if it failed or hangs. Else ranks may be out of step from
    there on, or the bytes that one of them did not expect are taken for the next call's: then it has stopped what
    failed or hangs in its group later, unless a rank has failed by itself. Where all send as many bytes along the same
    ways, as with another reduce op, neither can be."""
    if any(op.is_blocked or op.is_failed or _died_there(evidence, op) for op in call.ops.values()):
        return "stopped"
    ways = {(op.op, op.peer, op.size_bytes, str(op.signature.get("splits"))) for op in call.ops.values()}
    if len(ways) == 1 or any(_died_outside_ops(evidence, rank) for rank in evidence.died_by_themselves):
        return "wrong"
    table = evidence.table
    first = next(iter(call.ops.values()))
    of_group = (table.group == table.group[first.row]) & (table.seq > call.seq) & ~table.is_event
    if first.op == "new_group":  # the groups that it made are not the same on all ranks
        of_group = (table.entered_ns > first.entered_ns) & ~table.is_event
    has_stopped = evidence.is_stuck | table.has_failed | (table.is_blocked & evidence.is_of_killed)
    return "stopped" if (of_group & has_stopped).any() else "wrong"


def _died_outside_ops(evidence: Evidence, number: int) -> bool:
    last = evidence.run.ranks[number].last
    return number not in evidence.blocked and not (last is not None and last.is_failed)


def _died_there(evidence: Evidence, op: Op) -> bool:
    """Whether its rank was killed while the op was open, as by gloo's abort in the op of a rank that only polls it; or
    failed on its line; or only polls it since then."""
    was_open = op.completed_ns == 0 and bool(evidence.is_of_killed[op.row])
    return was_open or _failed_there(evidence, op) or _is_polled(evidence, op)


def _is_polled(evidence: Evidence, op: Op) -> bool:
    """Whether its rank polls it while the run stands still: nothing else is known to keep it there."""
    polled = evidence.polled(op.rank) if evidence.stuck else None
    return polled is not None and polled.row == op.row


def _failed_there(evidence: Evidence, op: Op) -> bool:
    """Whether its rank raised its error on the line of this op: what the op returned was not what torch expected."""
    rank = evidence.run.ranks[op.rank]
    if not raised_at(rank, op.site):
        return False
    return failed_by_itself(evidence, rank) and op.row in [each.row for each in rank.ops[-_OPS_OF_OBJECTS:]]


_OPS_OF_OBJECTS = 3  # a collective of objects makes so many: for their sizes, and for the objects themselves

"""What the ranks of other groups did in the same place: it tells who is odd where a group alone cannot.

Between the two ranks of a group, nobody has a majority. In a mesh, other groups of the same size make the same calls:
the rank that does as they do is in step.
"""

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.table import Op
from rollcall.explain.matching import Call


def narrow_down(evidence: Evidence, call: Call, odd: list[int]) -> list[int]:
    """Of ranks that differ without a majority: those that do something else than the ranks of parallel groups in their
    call with the same number; if these have not come to it, something else than what came next in earlier turns. All of
    them, if that does not decide it."""
    parallel = _parallel(evidence, call) if len(odd) == len(call.ops) else []
    if not parallel:
        return odd
    usual = _made_in(evidence, parallel, call.seq)
    if not usual and _have_done_the_same(evidence, call, parallel):
        usual = _following(evidence, call, parallel)
    unusual = [rank for rank in odd if _identity(call.ops[rank]) not in usual]
    return unusual if 0 < len(unusual) < len(odd) else odd


def _parallel(evidence: Evidence, call: Call) -> list[int]:
    """Groups of the same size that have no rank of this one, by their numbers."""
    members = set(call.group.ranks)
    return [
        number
        for number, group in enumerate(evidence.table.names.groups)
        if len(group.ranks) == len(members) and members.isdisjoint(group.ranks)
    ]


def _made_in(evidence: Evidence, groups: list[int], seq: int) -> set[tuple[object, ...]]:
    """What their ranks did in this call of theirs."""
    rows = np.flatnonzero(_are_collectives_of(evidence, groups) & (evidence.table.seq == seq))
    return {_identity(evidence.table.get(row)) for row in rows[:_MOST]}


def _have_done_the_same(evidence: Evidence, call: Call, parallel: list[int]) -> bool:
    """Whether the newest call of these groups is one that this group has made, too. They may be some calls behind: what
    went wrong in this one has ended them, as on a busy machine."""
    table = evidence.table
    newest = table.seq[_are_collectives_of(evidence, parallel)].max(initial=0)
    group = int(table.group[next(iter(call.ops.values())).row])
    return newest > 0 and not _made_in(evidence, parallel, newest).isdisjoint(_made_in(evidence, [group], newest))


def _following(evidence: Evidence, call: Call, parallel: list[int]) -> set[tuple[object, ...]]:
    """What ranks of these groups did after a call like the one before this, if its ranks agreed in that."""
    table = evidence.table
    group = int(table.group[next(iter(call.ops.values())).row])
    before = _made_in(evidence, [group], call.seq - 1)
    if len(before) != 1:
        return set()
    rows = np.flatnonzero(_are_collectives_of(evidence, [group, *parallel]) & (table.seq < call.seq))[-_TURNS:]
    made = {(int(table.rank[row]), int(table.group[row]), int(table.seq[row])): table.get(row) for row in rows}
    identities = {place: _identity(op) for place, op in made.items()}
    following = {place: (place[0], place[1], place[2] + 1) for place, found in identities.items() if found in before}
    return {identities[after] for after in following.values() if after in identities}


def _are_collectives_of(evidence: Evidence, groups: list[int]) -> NDArray[np.bool_]:
    return np.asarray(np.isin(evidence.table.group, groups) & evidence.table.is_collective)


_TURNS = 1000  # ops: some turns of a loop on all ranks of a few groups
_MOST = 64  # groups of a large mesh: a few say as much as all


def _identity(op: Op) -> tuple[object, ...]:
    return op.op, op.site, op.reduce, str(op.signature)

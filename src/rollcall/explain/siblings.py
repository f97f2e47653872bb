"""What the ranks of other groups did in the same place: it tells who is odd where a group alone cannot.

Between the two ranks of a group, nobody has a majority. In a mesh, other groups of the same size make the same calls:
the rank that does as they do is in step.
"""

import numpy as np

from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.table import Op
from rollcall.explain.matching import Call
from rollcall.record import ring_format


def decide(evidence: Evidence, call: Call, odd: list[int]) -> list[int]:
    """Of ranks that differ without a majority: those that do something else than the ranks of sibling groups in their
    call with the same number. All of them, if that does not decide it."""
    if len(odd) < len(call.ops):
        return odd
    usual = {_identity(op) for op in _same_calls(evidence, call)}
    unusual = [rank for rank in odd if _identity(call.ops[rank]) not in usual]
    return unusual if 0 < len(unusual) < len(odd) else odd


def _same_calls(evidence: Evidence, call: Call) -> list[Op]:
    """The ops with the same number in groups of the same size that have no rank of this one."""
    table, members = evidence.table, set(call.group.ranks)
    groups = [
        number
        for number, group in enumerate(table.names.groups)
        if len(group.ranks) == len(members) and members.isdisjoint(group.ranks)
    ]
    if not groups:
        return []
    is_pair = np.isin(table.op, ring_format.POINT_TO_POINT)
    is_same = np.isin(table.group, groups) & (table.seq == call.seq) & ~table.is_event & ~is_pair
    return [table.get(row) for row in np.flatnonzero(is_same)[:_MOST]]


_MOST = 64  # groups of a large mesh: a few say as much as all


def _identity(op: Op) -> tuple[object, ...]:
    return op.op, op.site, op.reduce, str(op.signature)

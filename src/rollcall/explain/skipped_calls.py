"""Which call one of two ranks has skipped: since then, the other has made a call of the group more, or some of them.

The calls after that may match by chance, as two barriers do, until one of them differs or somebody waits in vain. The
lines of the calls tell since when: from there on, one rank makes each call of the other one later.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.table import Op
from rollcall.explain.matching import Call

_SHIFTS = (1, -1)  # this rank has made one call more than the other, or one less


def first_skipped_call(evidence: Evidence, call: Call, rank: int, other: int) -> tuple[Op, Op] | None:
    """The first call of a group in which two ranks came from different lines, and since when one of them lags by one,
    or by several: the op of each. None if they were in step until this call."""
    table = evidence.table
    mine, theirs = (_rows(evidence, call, each) for each in (rank, other))
    found = [first for shift in _SHIFTS if (first := _first(table.site[mine], table.site[theirs], shift)) is not None]
    if not found:
        return _since_a_block(evidence, mine, theirs)
    first = min(found)
    ops = table.get(mine[first]), table.get(theirs[first])
    return ops if ops[0].seq == ops[1].seq < call.seq else None


def _since_a_block(evidence: Evidence, mine: NDArray[np.intp], theirs: NDArray[np.intp]) -> tuple[Op, Op] | None:
    """The same where one of them has made several calls more, as an evaluation of a sharded model does: since then all
    their calls come from different lines, until one makes a call that the other has made meanwhile. Two lines that met
    before are the branches of a program in step."""
    table = evidence.table
    _, places, others = np.intersect1d(table.seq[mine], table.seq[theirs], return_indices=True)
    mine, theirs = mine[places], theirs[others]
    sites = list(zip(table.site[mine].tolist(), table.site[theirs].tolist(), strict=True))
    alike = [place for place, (own, other) in enumerate(sites) if own == other]
    begin = alike[-1] + 1 if alike else 0
    known = set(sites[:begin])
    since = next((place for place in range(begin, len(sites) - 1) if sites[place] not in known), None)
    if since is None:
        return None
    made, theirs_made = zip(*sites[since:], strict=True)
    is_behind = made[-1] in theirs_made[:-1] or theirs_made[-1] in made[:-1]
    return (table.get(mine[since]), table.get(theirs[since])) if is_behind else None


def has_skipped(evidence: Evidence, call: Call, rank: int, other: int) -> bool:
    """Whether a rank has left out the op that the other makes in this call, and makes one that comes later: after the
    op before these two it has made both of them earlier, in the order of a loop over tensors, whose ops have one
    line."""
    table = evidence.table
    rows = _rows(evidence, call, rank)[-_TURNS:]
    columns = (table.op, table.signature, table.reduce, table.peer, table.site)
    *made, latest = np.stack([column[rows] for column in columns], axis=1).tolist()
    theirs = [int(column[call.ops[other].row]) for column in columns]
    if latest[-1] != theirs[-1] or not made:
        return False
    follows = [place + 1 for place, pair in enumerate(itertools.pairwise(made)) if pair == (made[-1], theirs)]
    return any(latest in itertools.takewhile(theirs.__ne__, made[place + 1 :]) for place in follows)


_TURNS = 1000  # ops: some turns of a loop over the tensors of a model


def _rows(evidence: Evidence, call: Call, rank: int) -> NDArray[np.intp]:
    """The collectives of a rank in this group, the last ones until this call."""
    table = evidence.table
    rows = np.arange(*table.spans[rank])
    group = table.group[next(iter(call.ops.values())).row]
    rows = rows[(table.group[rows] == group) & table.is_collective[rows] & (table.seq[rows] <= call.seq)]
    return np.asarray(rows[np.argsort(table.seq[rows], kind="stable")])


def _first(mine: NDArray[np.uint32], theirs: NDArray[np.uint32], shift: int) -> int | None:
    """Number of the first call that differs, if from there on each of my calls is the one that they made `shift` calls
    earlier."""
    last = min(len(mine) - 1, len(theirs) - 1 + shift)
    begin = last
    while begin - max(shift, 0) >= 0 and mine[begin] == theirs[begin - shift]:
        begin -= 1
    if begin == last:
        return None
    first = begin + (0 if shift > 0 else 1)  # before the calls that I make later than they: the one that is too many
    differing = [place for place in range(max(first, 0), min(last + 1, len(theirs))) if mine[place] != theirs[place]]
    return differing[0] if differing else None

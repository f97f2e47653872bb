"""The first call at which two runs part: each rank's calls of one run beside its calls of the other, in order."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.loading.load import Run
from rollcall.explain.loading.table import Op, Table
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.record import ring_format


@dataclass(frozen=True)
class Parting:
    """From here on the calls of some ranks differ. None: that run makes no further call."""

    kind: str  # order, op, argument, extra, count
    ranks: tuple[int, ...]  # that part here
    number: int  # of the call on these ranks, from 1
    first: Op | None
    second: Op | None
    what: str  # in words

    @property
    def ops(self) -> list[Op]:
        return [op for op in (self.first, self.second) if op is not None]


@dataclass(frozen=True)
class CallDifferences:
    """How many calls the ranks made that both runs have, and where they part."""

    first: int
    second: int
    parting: Parting | None
    left_out: int = 0  # calls that one of the runs no longer has, since its rings were full


def compare(first: Run, second: Run) -> CallDifferences:
    names = _Names()
    ranks = sorted(set(first.ranks) & set(second.ranks))
    counts = [0, 0]
    left_out = 0
    partings: dict[Any, list[int]] = {}
    for rank in ranks:
        mine, theirs = (_Sequence.of(run, rank, names) for run in (first, second))
        counts = [counts[0] + len(mine.rows), counts[1] + len(theirs.rows)]
        mine_kept, theirs_kept = _from_common_start(mine, theirs)
        left_out += len(mine.rows) - len(mine_kept.rows) + len(theirs.rows) - len(theirs_kept.rows)
        if (found := _parting(mine_kept, theirs_kept)) is not None:
            partings.setdefault(found, []).append(rank)
    parting = _earliest(first, second, partings, names) if partings else None
    return CallDifferences(counts[0], counts[1], parting, left_out)


class _Names:
    """One number for what two ops must have in common to be the same call."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._of_table: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def numbers(self, table: Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns numbers for the groups and for the signatures of a table."""
        if id(table) not in self._of_table:
            self._of_table[id(table)] = self._new_numbers(table)
        return self._of_table[id(table)]

    def _new_numbers(self, table: Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Groups have the same name in both runs, and other ranks if the worlds differ. The device does not matter."""
        groups = [self._number(("group", group.name)) for group in table.names.groups]
        kept = ("shapes", "dtypes", "splits", "objects")
        signatures = [self._number(tuple(str(each.get(name)) for name in kept)) for each in table.names.signatures]
        return np.array(groups), np.array(signatures)

    def _number(self, value: Any) -> int:
        return self._numbers.setdefault(value, len(self._numbers))


@dataclass(frozen=True)
class _Sequence:
    """The calls of one rank, in order."""

    rows: NDArray[np.intp]
    keys: NDArray[np.int64]  # a line per call: what must be the same
    places: NDArray[np.int64]  # a line per call: group, collective or not, seq

    @classmethod
    def of(cls, run: Run, rank: int, names: _Names) -> "_Sequence":
        table = run.table
        groups, signatures = names.numbers(table)
        rows = run.ranks[rank].ops.rows
        group = groups[table.group[rows]]
        op, signature = table.op[rows].astype(np.int64), signatures[table.signature[rows]]
        keys = np.stack([op, group, signature, table.reduce[rows], table.peer[rows], table.tag[rows]], axis=1)
        is_p2p = np.isin(op, ring_format.POINT_TO_POINT)
        return cls(rows, keys.astype(np.int64), np.stack([group, is_p2p, table.seq[rows].astype(np.int64)], axis=1))

    def after(self, start: int) -> "_Sequence":
        return _Sequence(self.rows[start:], self.keys[start:], self.places[start:])


def _from_common_start(one: _Sequence, other: _Sequence) -> tuple[_Sequence, _Sequence]:
    """A ring that is full has lost its oldest calls: begin with the first call that both have, by its number."""
    if not len(one.rows) or not len(other.rows) or (one.places[0] == other.places[0]).all():
        return one, other
    for mine, theirs, is_swapped in ((one, other, False), (other, one, True)):
        same = np.flatnonzero((theirs.places == mine.places[0]).all(axis=1))
        if len(same):
            cut = theirs.after(int(same[0]))
            return (cut, mine) if is_swapped else (mine, cut)
    return one, other


def _parting(one: _Sequence, other: _Sequence) -> tuple[Any, ...] | None:
    """What ranks that part in the same way have in common: kind, place, and the keys of both calls."""
    both = min(len(one.rows), len(other.rows))
    differ = np.flatnonzero((one.keys[:both] != other.keys[:both]).any(axis=1))
    if not len(differ):
        if len(one.rows) == len(other.rows):
            return None
        return "count", both, _key(one, both), _key(other, both)
    place = int(differ[0])
    return _kind(one, other, place), place, _key(one, place), _key(other, place)


def _key(sequence: _Sequence, place: int) -> tuple[int, ...] | None:
    return tuple(sequence.keys[place].tolist()) if place < len(sequence.rows) else None


def _kind(one: _Sequence, other: _Sequence, place: int) -> str:
    mine, theirs = (_key(each, place) for each in (one, other))
    next_mine, next_theirs = (_key(each, place + 1) for each in (one, other))
    if mine == next_theirs and theirs == next_mine:
        return "order"
    if mine == next_theirs or theirs == next_mine:
        return "extra"
    assert mine is not None
    assert theirs is not None
    return "argument" if mine[:2] == theirs[:2] else "op"


def _earliest(first: Run, second: Run, partings: dict[Any, list[int]], names: _Names) -> Parting:
    """The way in which ranks part that comes first in time, by the first run's clock."""

    def time_ns(found: Any) -> int:
        op = _op(first, second, partings[found][0], found[1], names)[0]
        return op.entered_ns if op else 1 << 62

    found = min(partings, key=lambda each: (time_ns(each), -len(partings[each])))
    ranks = partings[found]
    mine, theirs = _op(first, second, ranks[0], found[1], names)
    return Parting(found[0], tuple(ranks), found[1] + 1, mine, theirs, _in_words(found[0], ranks, mine, theirs))


def _op(first: Run, second: Run, rank: int, place: int, names: _Names) -> tuple[Op | None, Op | None]:
    pair = _from_common_start(*(_Sequence.of(run, rank, names) for run in (first, second)))
    one, other = (
        run.table.get(sequence.rows[place]) if place < len(sequence.rows) else None
        for run, sequence in zip((first, second), pair, strict=True)
    )
    return one, other


def _in_words(kind: str, ranks: list[int], mine: Op | None, theirs: Op | None) -> str:
    who = ranks_in_words(ranks)
    make = "makes" if len(ranks) == 1 else "make"
    if mine is None or theirs is None:
        longer, op = ("second", theirs) if mine is None else ("first", mine)
        assert op is not None
        return f"{who} {make} more calls in the {longer} run, from {call_in_words(op)} on"
    if kind == "order":
        return f"{who} {make} two calls in another order: {_from_to(mine, theirs)}"
    if kind == "extra":
        return f"{who} {make} one call more in one of the runs: {_from_to(mine, theirs)}"
    if kind == "argument":
        return f"{who} {make} the same call with another {_difference(mine, theirs)}: {_from_to(mine, theirs)}"
    return f"{who} {make} another call: {_from_to(mine, theirs)}"


def _from_to(mine: Op, theirs: Op) -> str:
    calls = [call_in_words(op) for op in (mine, theirs)]
    if mine.group.name != theirs.group.name:
        calls = [f"{call} of group {op.group.name}" for call, op in zip(calls, (mine, theirs), strict=True)]
    return f"{calls[0]} in the first run, {calls[1]} in the second"


def _difference(mine: Op, theirs: Op) -> str:
    for name in ("shapes", "dtypes", "splits", "objects"):
        if mine.signature.get(name) != theirs.signature.get(name):
            return {"shapes": "shape", "dtypes": "dtype", "objects": "number of objects"}.get(name, name)
    if mine.reduce != theirs.reduce:
        return "reduce op"
    if mine.peer != theirs.peer:
        return "peer" if mine.is_point_to_point else "root"
    return "tag" if mine.tag != theirs.tag else "argument"


def call_in_words(op: Op) -> str:
    """`all_reduce float32 [1000] at train.py:12`."""
    shapes, dtypes = op.signature.get("shapes") or [], op.signature.get("dtypes") or []
    tensors = Counter(f"{dtype} {shape}" for dtype, shape in zip(dtypes, shapes, strict=False))
    some = [f"{count} × {text}" if count > 1 else text for text, count in tensors.most_common(2)]
    more = [op.op, *([" and ".join(some)] if some else []), *([op.reduce] if op.reduce not in ("", "SUM") else [])]
    if op.peer >= 0:
        side = {"send": "to", "recv": "from"}.get(op.op, "with root")
        more.append(f"{side} {op.peer}")
    return " ".join(more) + (f" at {op.site}" if op.site else "")

"""What the rings of a run do not have. It is not compared: a rank would seem not to have done what was only lost.

A ring overwrites its oldest records, and counts them by group and op; a cut view does not read them at all. Where
recording stopped before the program did, the newest are missing.
"""

from collections import Counter, defaultdict

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.loading.load import Rank, Run
from rollcall.explain.loading.table import Group
from rollcall.record import ring_format

ALL = np.iinfo(np.int64).max  # in place of a number of ops: all of them may be lost
_PAIRS = tuple(ring_format.OPS[op] for op in ring_format.POINT_TO_POINT)


class Losses:
    """Counts, per rank, group and op."""

    def __init__(self, run: Run) -> None:
        self._run, self._table = run, run.table
        self._counts: Counter[tuple[int, Group, str]] = Counter()
        for folded in run.folded:
            self._counts[folded.rank, folded.group, "" if folded.op not in _PAIRS else folded.op] += folded.count
        self.ranks = [number for number, rank in run.ranks.items() if rank.dropped]

    def most(self, rank: int, group: Group, op: str = "") -> int:
        """The most ops of this name that a rank may have lost; without a name: the most collectives."""
        found = self._run.ranks[rank]
        is_counted = not found.unread and (found.has_all_counters or not found.dropped)
        return self._counts[rank, group, op] if is_counted else ALL

    def first_known_calls(self) -> NDArray[np.int64]:
        """Per group: the oldest call that every rank still has; ALL if none is."""
        groups = self._table.names.groups
        first = np.zeros(len(groups), dtype=np.int64)
        numbers = _groups_by_rank(groups, self.ranks)
        for rank in self.ranks:
            kept = self._first_kept(self._run.ranks[rank])
            for number in numbers[rank]:
                oldest = kept[number] if number in kept else min(self.most(rank, groups[number]), ALL - 1) + 1
                first[number] = max(first[number], oldest)
        return first

    def last_known_calls(self) -> NDArray[np.int64]:
        """Per group: the newest call that the rings of all members have, where recording stopped before the program."""
        table, groups = self._table, self._table.names.groups
        last = np.full(len(groups), ALL)
        for rank in self._run.ranks.values():
            if rank.stopped:
                rows = rank.ops.rows[table.is_collective[rank.ops.rows]]
                reached = np.zeros(len(groups), dtype=np.int64)
                np.maximum.at(reached, table.group[rows], table.seq[rows].astype(np.int64))
                is_member = np.array([rank.number in group.ranks for group in groups])
                last = np.where(is_member, np.minimum(last, reached), last)
        return last

    def _first_kept(self, rank: Rank) -> dict[int, int]:
        """By number of a group: the oldest call from which on the rank has all."""
        table = self._table
        rows = np.arange(*table.spans[rank.number])
        rows = rows[table.is_collective[rows]]
        rows = rows[np.argsort(table.group[rows], kind="stable")]
        group, seq = table.group[rows].astype(np.int64), table.seq[rows].astype(np.int64)
        begins = begins_of_runs(group, seq)
        return dict(zip(group[begins].tolist(), seq[begins].tolist(), strict=True))  # the last of a group counts


def begins_of_runs(key: NDArray[np.int64], seq: NDArray[np.int64]) -> NDArray[np.intp]:
    """Where the key changes, or a number is missing."""
    return np.flatnonzero((np.diff(key, prepend=-1) != 0) | (np.diff(seq, prepend=0) != 1))


def _groups_by_rank(groups: list[Group], ranks: list[int]) -> dict[int, list[int]]:
    found: defaultdict[int, list[int]] = defaultdict(list)
    wanted = set(ranks)
    for number, group in enumerate(groups):
        for rank in wanted.intersection(group.ranks):
            found[rank].append(number)
    return found

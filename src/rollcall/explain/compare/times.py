"""Where the time of two runs went: computing before a line, waiting there for others, communicating there.

A run's time is shared out completely: per rank, computing, waiting and communicating sum up to it, but for ops of
several threads or groups that overlap. All figures are means per rank, so that runs of different worlds compare.

A difference is beyond noise if it is larger than chance explains. The calls of a line are cut into batches in order of
time; how much the batches of one run differ says how much the sum varies by chance, slow changes included.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.table import Site, Table, site_in_words
from rollcall.explain.waits import is_setup
from rollcall.record import ring_format

SORTS = ("computing", "waiting", "communicating")
_BATCHES = 16  # the means of this many parts of a run show its spread, and are close to a normal distribution
_SIGMA = 3.0  # three standard errors: by chance once in some hundred lines
_NOTABLE = 0.01  # of the longer run: a smaller difference matters to nobody, however sure it is
# A line with so few calls shows no spread: only a large part of the run that became another half counts.
_FEW, _LARGE, _HALF = 4, 0.05, 0.5

_Key = tuple[str, str]  # place and sort


@dataclass(frozen=True)
class TimeDifference:
    """One sort of time at one place, in both runs: seconds per rank, and ops per rank."""

    by: str  # line, op, rank, phase
    place: str
    sort: str  # one of SORTS
    first_s: float
    second_s: float
    first_ops: float
    second_ops: float
    noise_s: float  # a difference up to this may be chance
    is_beyond_noise: bool

    @property
    def seconds(self) -> float:
        return self.second_s - self.first_s


@dataclass(frozen=True)
class Times:
    first_s: float  # from the first op to the last
    second_s: float
    whole: tuple[TimeDifference, ...]  # one per sort
    differences: tuple[TimeDifference, ...]  # the largest first
    slow_rank: tuple[TimeDifference, TimeDifference | None] | None = (
        None  # that others wait for; and where it lost most
    )

    @property
    def notable(self) -> list[TimeDifference]:
        return [each for each in self.differences if each.is_beyond_noise]


def compare(first: Evidence, second: Evidence) -> Times:
    numbered = _numbered_lines(first.table, second.table)
    one, other = _Run(first, numbered), _Run(second, numbered)
    found = [
        difference
        for by in ("line", "op", "rank", "phase")
        for difference in _by(by, one.sums(by), other.sums(by), max(one.seconds, other.seconds))
    ]
    whole = tuple(_by("run", one.sums("run"), other.sums("run"), max(one.seconds, other.seconds)))
    found.sort(key=lambda each: -abs(each.seconds))
    return Times(one.seconds, other.seconds, whole, tuple(found), _slow_rank(one, other, whole, found))


def _slow_rank(
    one: "_Run", other: "_Run", whole: tuple[TimeDifference, ...], found: list[TimeDifference]
) -> tuple[TimeDifference, TimeDifference | None] | None:
    """A rank that computes longer than before, and twice as much longer as all ranks on average; and before which line
    it does most of that."""
    average_s = next(each.seconds for each in whole if each.sort == "computing")
    worst = next((each for each in found if (each.by, each.sort) == ("rank", "computing") and each.seconds > 0), None)
    if worst is None or not worst.is_beyond_noise or worst.seconds <= 2 * max(average_s, 0):
        return None
    rank = int(worst.place.removeprefix("rank "))
    lines = _by("line", one.sums("line", rank), other.sums("line", rank), max(one.seconds, other.seconds))
    own = [each for each in lines if each.sort == "computing" and each.is_beyond_noise and each.seconds > 0]
    return worst, max(own, key=lambda each: each.seconds, default=None)


@dataclass(frozen=True)
class _Sum:
    """Seconds and ops per rank, and the standard error of the seconds."""

    place: str = ""
    seconds: float = 0.0
    ops: float = 0.0
    error_s: float = 0.0
    count: int = 0  # of all ranks


def _by(by: str, first: dict[_Key, _Sum], second: dict[_Key, _Sum], run_s: float) -> Iterator[TimeDifference]:
    for key in dict.fromkeys([*first, *second]):
        if by == "rank" and not (key in first and key in second):
            continue  # of runs of different worlds, the ranks that one of them lacks are not slower or quicker
        one, other = first.get(key, _Sum()), second.get(key, _Sum())
        noise_s = _SIGMA * float(np.hypot(one.error_s, other.error_s))
        difference_s = abs(other.seconds - one.seconds)
        is_beyond = difference_s > max(noise_s, _NOTABLE * run_s)
        if min(one.count or other.count, other.count or one.count) < _FEW:
            larger_s = max(one.seconds, other.seconds)
            is_beyond = is_beyond and difference_s > max(_LARGE * run_s, _HALF * larger_s)
        yield TimeDifference(
            by,
            other.place or one.place,
            key[1],
            one.seconds,
            other.seconds,
            one.ops,
            other.ops,
            noise_s,
            bool(is_beyond),
        )


class _Run:
    """The ops of a run that are counted, in order of time, with their seconds of each sort."""

    def __init__(self, evidence: Evidence, numbered: set[str]) -> None:
        table, found = evidence.table, evidence.intervals
        self._numbered = numbered
        rows = np.flatnonzero(~table.is_event & ~is_setup(table))
        rows = rows[np.lexsort((found.blocked_ns[rows], table.rank[rows]))]
        self._table = table
        computing_ns = _gaps_ns(table.rank[rows], found.blocked_ns[rows], found.ended_ns[rows])
        by_time = np.argsort(found.blocked_ns[rows] - found.shift_ns[rows], kind="stable")
        self._rows = rows[by_time]
        self._seconds = {
            "computing": computing_ns[by_time] / 1e9,
            "waiting": found.waiting_ns[self._rows] / 1e9,
            "communicating": found.communicating_ns[self._rows] / 1e9,
        }
        self._ranks = max(len(evidence.run.ranks), 1)
        self.seconds = found.run_s

    def sums(self, by: str, rank: int | None = None) -> dict[_Key, _Sum]:
        """Returns the sums of all ranks, or of one."""
        mine = np.arange(len(self._rows)) if rank is None else np.flatnonzero(self._table.rank[self._rows] == rank)
        names, places, number = self._places(by, self._rows[mine])
        # Of one rank, the sums are its own, not shares of the mean.
        ranks = 1 if by == "rank" or rank is not None else self._ranks
        count = np.bincount(number, minlength=len(names))
        batch = _batches(number, count)
        found: dict[_Key, _Sum] = {}
        for sort, seconds in self._seconds.items():
            summed = np.bincount(number * _BATCHES + batch, seconds[mine], minlength=len(names) * _BATCHES)
            each = summed.reshape(len(names), _BATCHES) / ranks
            for place, name in enumerate(names):
                used = min(int(count[place]), _BATCHES)
                error_s = float(each[place, :used].std(ddof=1)) * used**0.5 if used > 1 else 0.0
                ops = int(count[place]) / ranks
                found[name, sort] = _Sum(places[place], float(each[place].sum()), ops, error_s, int(count[place]))
        return found

    def _places(self, by: str, rows: NDArray[np.intp]) -> tuple[list[str], list[str], NDArray[np.int64]]:
        """All places: names that both runs have in common, the words to show; and for each op the number of its
        place."""
        table = self._table
        if by == "run":
            return ["run"], ["run"], np.zeros(len(rows), dtype=np.int64)
        if by == "line":
            key = table.op[rows].astype(np.int64) * len(table.names.sites) + table.site[rows]
            values, number = np.unique(key, return_inverse=True)
            lines = _lines(table, values)
            words = [f"{op} at {site_in_words(site)}" if site else f"{op} (line not known)" for op, site in lines]
            return _line_names(lines, self._numbered), words, number
        columns: dict[str, NDArray[Any]] = {"op": table.op, "rank": table.rank, "phase": table.phase}
        values, number = np.unique(columns[by][rows], return_inverse=True)
        names = [self._name(by, int(value)) for value in values]
        return names, names, number

    def _name(self, by: str, number: int) -> str:
        if by == "op":
            return ring_format.OPS[number]
        return f"rank {number}" if by == "rank" else self._table.names.phases[number] or "(none)"


_Line = tuple[str, Site | None]  # op and site


def _lines(table: Table, keys: NDArray[np.int64]) -> list[_Line]:
    found = [divmod(int(key), len(table.names.sites)) for key in keys]
    return [(ring_format.OPS[op], table.names.sites[site]) for op, site in found]


def _numbered_lines(first: Table, second: Table) -> set[str]:
    """The names of which one run has lines that are all in the other, under the same numbers: there, the program was
    hardly edited, so lines are told by their numbers."""
    found: list[dict[str, set[int]]] = []
    for table in (first, second):
        key = np.unique(table.op.astype(np.int64) * len(table.names.sites) + table.site)
        numbers: dict[str, set[int]] = {}
        for op, site in _lines(table, key):
            if site:
                numbers.setdefault(_line_name(op, site), set()).add(site.line)
        found.append(numbers)
    one, other = found
    return {name for name in one.keys() & other if one[name] <= other[name] or other[name] <= one[name]}


def _line_names(lines: list[_Line], numbered: set[str]) -> list[str]:
    """Such as `all_reduce in step of train.py`: lines have moved where the program was edited, so they are not part of
    the name; of several lines of one function with the same op, the second has a 2, and so on."""
    order = sorted(range(len(lines)), key=lambda place: site.line if (site := lines[place][1]) else 0)
    seen: dict[str, int] = {}
    names = [""] * len(lines)
    for place in order:
        op, site = lines[place]
        name = _line_name(op, site) if site else f"{op} (line not known)"
        seen[name] = seen.get(name, 0) + 1
        number = site.line if site and name in numbered else seen[name]
        names[place] = name if number == 1 else f"{name} ({number})"
    return names


def _line_name(op: str, site: Site) -> str:
    return f"{op} in {site.function} of {site.file.rpartition('/')[2]}"


def _gaps_ns(rank: NDArray[np.int32], begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """How long each op's rank was in no op before it. Ordered by rank, then by time."""
    gaps_ns = np.zeros(len(rank), dtype=np.int64)
    starts = np.flatnonzero(np.diff(rank, prepend=-1))
    for start, end in zip(starts, np.append(starts, len(rank))[1:], strict=True):
        until_ns = np.maximum.accumulate(end_ns[start:end])
        gaps_ns[start + 1 : end] = np.maximum(begin_ns[start + 1 : end] - until_ns[:-1], 0)
    return gaps_ns


def _batches(number: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Per op: its batch among the ops of its place, which are in order of time."""
    order = np.argsort(number, kind="stable")
    starts = np.cumsum(count) - count
    turn = np.empty(len(number), dtype=np.int64)
    turn[order] = np.arange(len(number)) - np.repeat(starts, count)
    return turn * np.minimum(count, _BATCHES)[number] // np.maximum(count, 1)[number]

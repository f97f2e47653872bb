"""Against an earlier run: which ops are faster or slower by more than noise.

Noise is how much the rounds of one run differ. A difference counts if it is at least 5 %, at least three times the
spread of the rounds of both runs, and if every round of one run is faster than every round of the other: with five
rounds each, chance alone does that once in 126 times.
"""

import math
from dataclasses import dataclass
from statistics import median, pstdev
from typing import Literal

from rollcall.bench.results import BenchResults, Row
from rollcall.errors import UsageError
from rollcall.units import in_binary_bytes

_MIN_DIFFERENCE = 0.05
_MIN_SPREADS = 3.0
Judgement = Literal["same", "faster", "slower"]


@dataclass(frozen=True)
class Change:
    """One measurement, then and now. `ratio` is how many times as long it takes."""

    row: Row
    ratio: float
    noise: float  # relative: a ratio within 1 ± noise is no difference
    judgement: Judgement


@dataclass(frozen=True)
class BenchComparison:
    differences: tuple[Change, ...]
    other_differences: tuple[str, ...]  # between the two runs: ranks, backend, versions

    def of(self, judgement: Judgement) -> list[Change]:
        return [each for each in self.differences if each.judgement == judgement]

    @property
    def sentence(self) -> str:
        """The verdict."""
        slower, faster, count = self.of("slower"), self.of("faster"), len(self.differences)
        parts = []
        if slower:
            worst = max(slower, key=lambda each: each.ratio)
            parts.append(
                f"{len(slower)} of {count} slower beyond noise, {_name(worst)} most: {worst.ratio:.2f} × the time"
            )
        if faster:
            best = min(faster, key=lambda each: each.ratio)
            parts.append(
                f"{len(faster)} of {count} faster beyond noise, {_name(best)} most: {best.ratio:.2f} × the time"
            )
        return "; ".join(parts) or f"no difference beyond noise in {count} measurements"


def compare(then: BenchResults, now: BenchResults) -> BenchComparison:
    before = {row.key: row for row in then.rows}
    pairs = [(before[row.key], row) for row in now.rows if row.key in before]
    if not pairs:
        raise UsageError("the earlier run has none of these ops, sizes and dtypes: compare runs of the same options")
    return BenchComparison(tuple(_difference(*pair) for pair in pairs), tuple(_other_differences(then, now)))


def _difference(then: Row, now: Row) -> Change:
    before_s, after_s = median(then.rounds_s), median(now.rounds_s)
    spread = math.hypot(_spread(then), _spread(now))
    noise = max(_MIN_DIFFERENCE, _MIN_SPREADS * spread)
    ratio = after_s / before_s
    judgement: Judgement = "same"
    if ratio > 1 + noise and min(now.rounds_s) > max(then.rounds_s):
        judgement = "slower"
    elif ratio < 1 / (1 + noise) and max(now.rounds_s) < min(then.rounds_s):
        judgement = "faster"
    return Change(now, ratio, noise, judgement)


def _spread(row: Row) -> float:
    return pstdev(row.rounds_s) / median(row.rounds_s)


def _other_differences(then: BenchResults, now: BenchResults) -> list[str]:
    facts = {
        "ranks": (then.ranks, now.ranks),
        "hosts": (len(set(then.hosts)), len(set(now.hosts))),
        "backend": (then.backend, now.backend),
        "device": (then.device, now.device),
        **{name: (then.versions.get(name, "?"), version) for name, version in now.versions.items()},
    }
    return [f"{name}: {a} then, {b} now" for name, (a, b) in facts.items() if a != b]


def _name(difference: Change) -> str:
    return f"{difference.row.op} of {in_binary_bytes(difference.row.size_bytes)}"

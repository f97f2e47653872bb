"""`rollcall explain --json` on the rings of big runs: seconds, memory, and whether the planted faults are named."""

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.table import Table

from big_run import shape
from contenders import PROGRAMS
from jobs import Jobs
from results import Goal, Result, how_it_failed, progress, ratio, seconds, table, times

MOST_S = {(1000, 10_000): 6.0, (10_000, 1000): 10.0}
MOST_BYTES = 1.5e9
HALVES = {(1000, 10_000): (1000, 5000), (10_000, 1000): (5000, 1000)}
ABOUT_LINEAR = 1.3


@dataclass(frozen=True)
class Explained:
    """One run, and what explain found in it."""

    ranks: int
    ops: int
    faults: tuple[str, ...]
    named: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()  # what was not planted
    seconds: float | None = None
    peak_bytes: int | None = None
    made_s: float | None = None

    @property
    def records(self) -> int:
        return self.ranks * self.ops

    @property
    def name(self) -> str:
        return f"{self.ranks:,} × {self.ops:,}, {self.faults[0] if self.faults else 'healthy'}"


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    done = [_explain(jobs, *size, tuple(faults), options) for size in options.sizes for faults in options.faults]
    goals = [goal for each in done if (each.ranks, each.ops) in MOST_S for goal in _goals(each, done)]
    return Result([_table(done)], goals, {each.name: asdict(each) for each in done})


def _explain(jobs: Jobs, ranks: int, ops: int, faults: tuple[str, ...], options: argparse.Namespace) -> Explained:
    blank = Explained(ranks, ops, faults)
    planted = {(each.kind, (each.rank,)) for each in shape(ranks, ops, faults).planted}
    words = [sys.executable, str(PROGRAMS / "explain_big.py"), str(ranks), str(ops), *faults]
    with jobs.start(words) as job:
        code = job.wait(options.timeout_s)
        if code != 0:
            progress(f"{blank.name}: {how_it_failed(code)}\n{job.last_words()}")
            return blank
        figures = json.loads((job.folder / "figures.json").read_text())
        found = _found(job.folder / "told.json")
    named = tuple(kind for kind, _ in sorted(planted & found))
    blamed = tuple(f"{kind} {list(culprits)}" for kind, culprits in sorted(found - planted))
    progress(f"{blank.name}: {seconds(figures['seconds'])}, named {', '.join(named) or 'nothing'}")
    return replace(blank, named=named, blamed=blamed, **figures)


def _found(path: Path) -> set[tuple[str, tuple[int, ...]]]:
    return {(each["kind"], tuple(each["ranks"])) for each in json.loads(path.read_text())["findings"]}


def _table(done: list[Explained]) -> Table:
    made = table(
        "rollcall explain --json (the rings fresh from their making, so in the page cache)",
        *(
            "ranks × ops, how it ended",
            "records",
            "time",
            "a million",
            "of half the size",
            "most memory",
            "faults named",
            "others blamed",
        ),
    )
    for each in done:
        per_million = each.seconds / each.records * 1e6 if each.seconds else None
        made.add_row(
            each.name,
            f"{each.records / 1e6:g} M",
            seconds(each.seconds),
            seconds(per_million),
            times(_growth(each, done)),
            _gigabytes(each.peak_bytes),
            f"{len(each.named)} of {len(each.faults)}",
            "; ".join(each.blamed) or "none",
        )
    return made


def _goals(each: Explained, done: list[Explained]) -> list[Goal]:
    took, peak, most_s = each.seconds, each.peak_bytes, MOST_S[each.ranks, each.ops]
    named = f"{len(each.named)} of {len(each.faults)}, {len(each.blamed)} others blamed"
    goals = [
        Goal(f"explain {each.name}", f"≤ {most_s:g} s", seconds(took), took is not None and took <= most_s),
        Goal("… memory", f"≤ {MOST_BYTES / 1e9:g} GB", _gigabytes(peak), peak and peak <= MOST_BYTES),
        Goal(
            "… faults named",
            "all, no other",
            named,
            None if took is None else len(each.named) == len(each.faults) and not each.blamed,
        ),
    ]
    growth = _growth(each, done)
    if growth is not None:
        wanted = f"≤ {2 * ABOUT_LINEAR:g} × (records: 2 ×)"
        goals.append(Goal("… of half the size", wanted, times(growth), growth <= 2 * ABOUT_LINEAR))
    return goals


def _growth(each: Explained, done: list[Explained]) -> float | None:
    """By how much longer it takes than half of its ranks, or of its ops."""
    half = HALVES.get((each.ranks, each.ops))
    smaller = next((other for other in done if (other.ranks, other.ops) == half and other.faults == each.faults), None)
    return ratio(each.seconds, smaller.seconds) if smaller else None


def _gigabytes(size_bytes: int | None) -> str:
    return "–" if size_bytes is None else f"{size_bytes / 1e9:.2f} GB"

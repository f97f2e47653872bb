"""`rollcall explain --json` on the rings of big runs: seconds, memory, and whether the planted faults are named."""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from big_run import shape
from contenders import PROGRAMS
from jobs import Jobs
from results import Goal, Result, how_it_failed, progress, ratio, seconds, table, times

MOST_S, MOST_BYTES = 20.0, 4e9
BIG = ((1000, 10_000), (10_000, 1000))
SMALLER = (1000, 1000)  # a tenth of each of the big ones
ABOUT_LINEAR = 1.3


@dataclass(frozen=True)
class Explained:
    """One run, and what came of explaining it."""

    ranks: int
    ops: int
    planted: int
    named: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()  # what was not planted
    seconds: float | None = None
    peak_bytes: int | None = None
    made_s: float | None = None

    @property
    def records(self) -> int:
        return self.ranks * self.ops


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    done = [_explain(jobs, *size, options) for size in options.sizes]
    goals = [goal for each in done if (each.ranks, each.ops) in BIG for goal in _goals(each, done)]
    return Result([_table(done)], goals, {f"{each.ranks}x{each.ops}": asdict(each) for each in done})


def _explain(jobs: Jobs, ranks: int, ops: int, options: argparse.Namespace) -> Explained:
    planted = {(each.kind, (each.rank,)) for each in shape(ranks, ops, options.faults).planted}
    words = [sys.executable, str(PROGRAMS / "explain_big.py"), str(ranks), str(ops), *options.faults]
    with jobs.start(words) as job:
        code = job.wait(options.timeout_s)
        if code != 0:
            progress(f"{ranks:,} ranks × {ops:,} ops: {how_it_failed(code)}\n{job.last_words()}")
            return Explained(ranks, ops, len(planted))
        figures = json.loads((job.folder / "figures.json").read_text())
        found = _found(job.folder / "told.json")
    named = tuple(kind for kind, _ in sorted(planted & found))
    blamed = tuple(f"{kind} {list(culprits)}" for kind, culprits in sorted(found - planted))
    progress(f"{ranks:,} ranks × {ops:,} ops: {seconds(figures['seconds'])}, named {', '.join(named) or 'nothing'}")
    return Explained(ranks, ops, len(planted), named, blamed, **figures)


def _found(path: Path) -> set[tuple[str, tuple[int, ...]]]:
    return {(each["kind"], tuple(each["ranks"])) for each in json.loads(path.read_text())["findings"]}


def _table(done: list[Explained]) -> Table:
    made = table(
        "rollcall explain --json (the rings fresh from their making, so in the page cache)",
        *("ranks × ops", "records", "time", "a million", "most memory", "faults named", "others blamed"),
    )
    for each in done:
        per_million = each.seconds / each.records * 1e6 if each.seconds else None
        made.add_row(
            f"{each.ranks:,} × {each.ops:,}",
            f"{each.records / 1e6:g} M",
            seconds(each.seconds),
            seconds(per_million),
            _gigabytes(each.peak_bytes),
            f"{len(each.named)} of {each.planted}",
            "; ".join(each.blamed) or "none",
        )
    return made


def _goals(each: Explained, done: list[Explained]) -> list[Goal]:
    size = f"{each.ranks:,} ranks × {each.ops:,} ops"
    took, peak = each.seconds, each.peak_bytes
    named = f"{len(each.named)} of {each.planted}, {len(each.blamed)} others blamed"
    goals = [
        Goal(f"explain {size}", f"≤ {MOST_S:g} s", seconds(took), took and took <= MOST_S),
        Goal(f"… memory, {size}", f"≤ {MOST_BYTES / 1e9:g} GB", _gigabytes(peak), peak and peak <= MOST_BYTES),
        Goal(
            f"… faults named, {size}",
            "all, no other",
            named,
            None if took is None else len(each.named) == each.planted and not each.blamed,
        ),
    ]
    smaller = next((other for other in done if (other.ranks, other.ops) == SMALLER), None)
    if smaller is not None:
        growth = ratio(took, smaller.seconds)
        more = each.records / smaller.records
        wanted = f"≤ {more * ABOUT_LINEAR:g} × (records: {more:g} ×)"
        met = None if growth is None else growth <= more * ABOUT_LINEAR
        goals.append(Goal(f"… growth from 1,000 × 1,000, {size}", wanted, times(growth), met))
    return goals


def _gigabytes(size_bytes: int | None) -> str:
    return "–" if size_bytes is None else f"{size_bytes / 1e9:.2f} GB"

"""`rollcall explain --json` on all_to_alls with random splits: no two signatures are alike, and each call has to be
compared. Doubled sizes show that the time grows with the number of records."""

import argparse
import json
import sys
from dataclasses import asdict, dataclass

from contenders import PROGRAMS
from jobs import Jobs
from results import Goal, Result, how_it_failed, progress, ratio, seconds, table, times

MOST_S, MOST_BYTES = 15.0, 1.5e9
LARGEST = (64, 5000)
WRONG = 9  # the rank whose splits do not match in the last call
ABOUT_LINEAR = 1.3


@dataclass(frozen=True)
class Explained:
    ranks: int
    calls: int
    seconds: float | None = None
    peak_bytes: int | None = None
    is_named: bool = False

    @property
    def name(self) -> str:
        return f"{self.ranks} ranks × {self.calls:,} all_to_alls"


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    done = [_explain(jobs, ranks, calls, options.timeout_s) for ranks, calls in options.splits]
    made = table("all_to_alls with random splits", "ranks × calls", "time", "of half the calls", "most memory", "named")
    for each in done:
        peak = "–" if each.peak_bytes is None else f"{each.peak_bytes / 1e9:.2f} GB"
        growth = times(_growth(each, done))
        made.add_row(each.name, seconds(each.seconds), growth, peak, "yes" if each.is_named else "no")
    goals = [goal for each in done if (each.ranks, each.calls) == LARGEST for goal in _goals(each, done)]
    return Result([made], goals, {each.name: asdict(each) for each in done})


def _explain(jobs: Jobs, ranks: int, calls: int, timeout_s: float) -> Explained:
    words = [sys.executable, str(PROGRAMS / "explain_splits.py"), str(ranks), str(calls), str(WRONG)]
    with jobs.start(words) as job:
        code = job.wait(timeout_s)
        if code != 0:
            progress(f"{ranks} × {calls}: {how_it_failed(code)}\n{job.last_words()}")
            return Explained(ranks, calls)
        figures = json.loads((job.folder / "figures.json").read_text())
        verdict = json.loads((job.folder / "told.json").read_text())["verdict"] or {}
    is_named = (verdict.get("kind"), verdict.get("ranks")) == ("mismatched-splits", [0, WRONG])
    progress(f"{ranks} × {calls}: {seconds(figures['seconds'])}")
    return Explained(ranks, calls, figures["seconds"], figures["peak_bytes"], is_named)


def _growth(each: Explained, done: list[Explained]) -> float | None:
    half = next((other for other in done if (other.ranks, other.calls * 2) == (each.ranks, each.calls)), None)
    return ratio(each.seconds, half.seconds) if half else None


def _goals(each: Explained, done: list[Explained]) -> list[Goal]:
    took, peak, growth = each.seconds, each.peak_bytes, _growth(each, done)
    is_in_time = took is not None and took <= MOST_S and each.is_named
    goals = [
        Goal(f"explain {each.name}", f"≤ {MOST_S:g} s, the ranks named", seconds(took), is_in_time),
        Goal("… memory", f"≤ {MOST_BYTES / 1e9:g} GB", f"{(peak or 0) / 1e9:.2f} GB", peak and peak <= MOST_BYTES),
    ]
    if growth is not None:
        goals.append(
            Goal("… of half the calls", f"≤ {2 * ABOUT_LINEAR:g} ×", times(growth), growth <= 2 * ABOUT_LINEAR)
        )
    return goals

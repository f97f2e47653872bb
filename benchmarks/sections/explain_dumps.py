"""`rollcall explain --json` on the Flight Recorder dumps of big jobs: seconds, memory, and whether the guilty rank is
named."""

import argparse
import json
import sys
from dataclasses import asdict, dataclass

from big_dumps import GUILTY
from contenders import PROGRAMS
from jobs import Jobs
from results import Goal, Result, how_it_failed, progress, seconds, table

MOST_S = 10.0
MANY = 1000  # dumps of the goal


@dataclass(frozen=True)
class Explained:
    dumps: int
    ops: int
    seconds: float | None = None
    peak_bytes: int | None = None
    is_named: bool = False

    @property
    def name(self) -> str:
        return f"{self.dumps:,} dumps × {self.ops:,} ops"


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    done = [_explain(jobs, dumps, ops, options.timeout_s) for dumps, ops in options.dumps]
    made = table(
        "rollcall explain --json of Flight Recorder dumps", "dumps", "time", "most memory", "guilty rank named"
    )
    for each in done:
        peak = "–" if each.peak_bytes is None else f"{each.peak_bytes / 1e9:.2f} GB"
        made.add_row(each.name, seconds(each.seconds), peak, "yes" if each.is_named else "no")
    return Result([made], [_goal(each) for each in done if each.dumps == MANY], {e.name: asdict(e) for e in done})


def _explain(jobs: Jobs, dumps: int, ops: int, timeout_s: float) -> Explained:
    with jobs.start([sys.executable, str(PROGRAMS / "explain_dumps.py"), str(dumps), str(ops)]) as job:
        code = job.wait(timeout_s)
        if code != 0:
            progress(f"{dumps} dumps: {how_it_failed(code)}\n{job.last_words()}")
            return Explained(dumps, ops)
        figures = json.loads((job.folder / "figures.json").read_text())
        verdict = json.loads((job.folder / "told.json").read_text())["verdict"] or {}
    named = (verdict.get("kind"), verdict.get("ranks")) == ("missing-rank", [GUILTY % dumps])
    return Explained(dumps, ops, figures["seconds"], figures["peak_bytes"], named)


def _goal(each: Explained) -> Goal:
    met = each.seconds is not None and each.seconds <= MOST_S and each.is_named
    return Goal(f"explain {each.name}", f"≤ {MOST_S:g} s, the rank named", seconds(each.seconds), met)

"""`rollcall --help`: the minimum time of any command. It must not import torch."""

import argparse

from contenders import ROLLCALL
from jobs import Jobs
from results import Goal, Result, median_or_none, progress, seconds, table

GOAL_S = 0.3
REPEATS = 10
WORDS = [str(ROLLCALL.executable), "--help"]


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    imports_torch = _imports_torch(jobs, options.timeout_s)
    took_s = [_time(jobs, options.timeout_s) for _ in range(REPEATS)]
    usual_s = median_or_none(took_s)
    made = table("rollcall --help", "median", f"longest of {REPEATS}", "imports torch")
    made.add_row(
        seconds(usual_s),
        seconds(max((each for each in took_s if each is not None), default=None)),
        "yes" if imports_torch else "no",
    )
    met = None if usual_s is None else usual_s < GOAL_S and not imports_torch
    goal = Goal("rollcall --help, without torch", f"< {GOAL_S} s", seconds(usual_s), met)
    return Result([made], [goal], {"seconds": took_s, "imports_torch": imports_torch})


def _time(jobs: Jobs, timeout_s: float) -> float | None:
    with jobs.start(WORDS) as job:
        if job.wait(timeout_s) != 0:
            progress(f"rollcall --help failed:\n{job.last_words()}")
            return None
        return (job.ended_ns - job.started_ns) / 1e9


def _imports_torch(jobs: Jobs, timeout_s: float) -> bool:
    """Whether Python's -X importtime lists torch."""
    with jobs.start(WORDS, PYTHONPROFILEIMPORTTIME="1") as job:
        job.wait(timeout_s)
        said = (job.folder / "output.txt").read_text(errors="replace").splitlines()
    return any(line.startswith("import time:") and line.rpartition("|")[2].strip() == "torch" for line in said)

"""A pytest test on four ranks: rollcall's warm server against torch.multiprocessing.spawn."""

import argparse
import os
import sys
from pathlib import Path
from statistics import mean
from xml.etree import ElementTree

from contenders import PROGRAMS
from jobs import Jobs
from results import Goal, Result, at_least, median_or_none, progress, ratio, seconds, table, times

GOAL = 20.0  # times faster than mp.spawn
SPAWN, WARM = "test_with_spawn", "test_with_rollcall"
LABELS = {SPAWN: "mp.spawn", WARM: "@pytest.mark.ranks"}

Rounds = list[list[float]]  # the seconds of each test, by round


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    counts = {SPAWN: options.spawn_tests, WARM: options.tests}
    rounds: dict[str, Rounds] = {name: [] for name in counts}
    for number in range(1, options.test_rounds + 1):
        for name, count in counts.items():
            took_s = _run(jobs, name, count, options.timeout_s)
            progress(f"round {number}: {LABELS[name]}: {', '.join(map(seconds, took_s)) or 'failed'}")
            rounds[name] += [took_s] if took_s else []
    spawn, warm = (_figures(rounds[name]) for name in (SPAWN, WARM))
    faster = [ratio(slow, fast) for slow, fast in zip(spawn, warm, strict=True)]
    made = table(
        "A pytest test on 4 ranks, timed by pytest", "", "tests", "the first", "each later one", "all, per test"
    )
    made.add_row(LABELS[SPAWN], str(counts[SPAWN]), *map(seconds, spawn))
    made.add_row(LABELS[WARM], str(counts[WARM]), *map(seconds, warm))
    made.add_row("times faster", "", *map(times, faster))
    later = faster[1]
    goal = Goal("a 4-rank pytest test on the warm server", "≥ 20 × faster", times(later), at_least(later, GOAL))
    return Result([made], [goal], {LABELS[name]: each for name, each in rounds.items()})


def _figures(rounds: Rounds) -> tuple[float | None, float | None, float | None]:
    """Medians: of the first test of a session, which also starts the server; of a later one; of the mean of all."""
    return (
        median_or_none([each[0] for each in rounds]),
        median_or_none([one for each in rounds for one in each[1:]]),
        median_or_none([mean(each) for each in rounds]),
    )


def _run(jobs: Jobs, name: str, count: int, timeout_s: float) -> list[float]:
    """One pytest session with repetitions of one test; empty if any failed."""
    words = [sys.executable, "-m", "pytest", f"{PROGRAMS}/test_on_ranks.py", "-k", name, "--junitxml=report.xml"]
    words += ["-c", os.devnull, f"--rootdir={PROGRAMS}", "-p", "no:cacheprovider"]
    with jobs.start(words, ROLLCALL_BENCH_TESTS=str(count), OMP_NUM_THREADS="1") as job:
        if job.wait(timeout_s) != 0:
            progress(f"{LABELS[name]} failed:\n{job.last_words()}")
            return []
        return _times(job.folder / "report.xml")


def _times(report: Path) -> list[float]:
    return [float(case.attrib["time"]) for case in ElementTree.parse(report).iter("testcase")]

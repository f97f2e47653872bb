"""The time from a hang to the verdict."""

import argparse
import time

from contenders import PROGRAMS, ROLLCALL
from jobs import Job, Jobs
from results import Goal, Result, progress, seconds, table

MOST_S = 10.0
AFTER_S = 5
RANKS = 3
LOOK_S = 0.02


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    took_s = [_time(jobs, options.timeout_s) for _ in range(options.hang_repeats)]
    known = [each for each in took_s if each is not None]
    longest_s = max(known, default=None)
    made = table(f"From the freeze to the verdict, --hang-after {AFTER_S}, {RANKS} ranks", "tries", "lowest", "highest")
    made.add_row(str(len(took_s)), seconds(min(known, default=None)), seconds(longest_s))
    failed = len(known) < len(took_s)
    met = None if longest_s is None else longest_s <= MOST_S and not failed
    goal = Goal("verdict after the freeze, the longest", f"≤ {MOST_S:g} s", seconds(longest_s), met)
    return Result([made], [goal], {"seconds": took_s})


def _time(jobs: Jobs, timeout_s: float) -> float | None:
    words = [str(ROLLCALL.executable), "run", "-n", str(RANKS), "--hang-after", str(AFTER_S)]
    with jobs.start([*words, str(PROGRAMS / "freeze.py")]) as job:
        told_ns = _wait_for_verdict(job, timeout_s)
        frozen_ns = max(job.numbers("frozen-*"), default=0)
    if not told_ns or not frozen_ns:
        progress(f"no verdict within {timeout_s:g} s")
        return None
    progress(f"verdict {seconds((told_ns - frozen_ns) / 1e9)} after the freeze")
    return (told_ns - frozen_ns) / 1e9


def _wait_for_verdict(job: Job, timeout_s: float) -> int:
    """When the verdict could be read; 0 if never."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if b"verdict:" in (job.folder / "output.txt").read_bytes():
            return time.time_ns()
        time.sleep(LOOK_S)
    return 0

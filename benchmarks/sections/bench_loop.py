"""The timed loop of `rollcall bench`, compared with a bare loop of the same calls."""

import argparse
import json

from contenders import ROLLCALL
from jobs import Jobs
from results import Goal, Result, how_it_failed, progress, table

MOST = 0.03
NAMES = {"8": "8 B", str(64 << 20): "64 MiB"}


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    words = [*ROLLCALL.command(2, "both_loops.py", "--no-record"), str(options.loop_rounds)]
    with jobs.start(words) as job:
        code = job.wait(options.timeout_s)
        if code != 0:
            progress(f"the loops: {how_it_failed(code)}\n{job.last_words()}")
            return Result([], [])
        found = json.loads((job.folder / "loops.json").read_text())
    made = table("all_reduce on 2 ranks: rollcall bench beside a bare loop", "", "bare loop", "rollcall bench", "ratio")
    goals = []
    for size, both in found.items():
        ratio = both["bench_s"] / both["bare_s"]
        made.add_row(NAMES[size], f"{both['bare_s'] * 1e6:,.1f} µs", f"{both['bench_s'] * 1e6:,.1f} µs", f"{ratio:.3f}")
        goals.append(
            Goal(
                f"bench's all_reduce of {NAMES[size]} against a bare loop",
                "within 3 %",
                f"{ratio:.3f} ×",
                abs(ratio - 1) <= MOST,
            )
        )
    return Result([made], goals, found)

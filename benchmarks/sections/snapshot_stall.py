"""What a step loses to an asynchronous snapshot of 100 M parameters with AdamW's state, and what torch.save takes."""

import argparse
import json
import sys
from statistics import median

from contenders import PROGRAMS
from jobs import Jobs
from results import Goal, Result, how_it_failed, progress, seconds, table

MOST = 0.10  # of the blocking torch.save


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    words = [sys.executable, str(PROGRAMS / "training" / "stall.py"), str(options.snapshots)]
    with jobs.start(words) as job:
        code = job.wait(options.timeout_s)
        path = job.folder / "stall.json"
        if code != 0 or not path.exists():
            progress(f"it {how_it_failed(code)}:\n{job.last_words()}")
            return Result([], [Goal("stall of a step", "≤ 10 % of torch.save", "failed", None)])
        figures = json.loads(path.read_text())
    quiet_s, saving_s, blocking_s = (median(figures[name]) for name in ("quiet_step", "saving_step", "torch_save"))
    stall_s = median(call + waited for call, waited in zip(figures["call"], figures["waited"], strict=True))
    made = table(f"A snapshot of {figures['parameters'][0] / 1e6:.0f} M parameters and AdamW's state, one rank", "", "")
    for name, value in {
        "a step without a snapshot": quiet_s,
        "a step beside which one is written": saving_s,
        "the stall: the call of save, and the optimizer's wait for the copy": stall_s,
        "of it, the call": median(figures["call"]),
        "until it is on the disk, checked and named": median(figures["write"]),
        "a blocking torch.save, without fsync": blocking_s,
    }.items():
        made.add_row(name, seconds(value))
    share = stall_s / blocking_s
    goal = Goal("stall of a step for a snapshot", "≤ 10 % of torch.save", f"{share:.1%}", share <= MOST)
    return Result([made], [goal], figures)

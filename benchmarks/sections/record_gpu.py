"""What recording costs a training step on a GPU: whether it makes the GPU wait for anything."""

import argparse
import json
import sys
from statistics import median

from contenders import PROGRAMS, REPOSITORY
from jobs import Jobs
from results import Goal, Result, how_it_failed, progress, table

MOST = 0.01
MOST_OF_GPT = 0.002  # its step is long enough to measure that
LOOK = "import sys, torch; sys.exit(0 if torch.cuda.is_available() else 3)"


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    with jobs.start([sys.executable, "-c", LOOK]) as job:
        if job.wait(options.timeout_s) != 0:
            progress("torch finds no GPU here: this section is left out")
            return Result([], [Goal("recording a step on a GPU", f"≤ {MOST:.0%}", "no GPU here", None)])
    words = [sys.executable, str(PROGRAMS / "record_on_gpu.py"), "--repeats", str(options.step_repeats)]
    with jobs.start(words, PYTHONPATH=str(REPOSITORY / "src")) as job:
        code = job.wait(options.timeout_s)
        if code != 0:
            progress(f"record_on_gpu.py {how_it_failed(code)}:\n{job.last_words()}")
            return Result([], [Goal("recording a step on a GPU", f"≤ {MOST:.0%}", "failed", None)])
        figures = json.loads((job.folder / "figures.json").read_text())
    made = table(
        "A training step on the GPU", "", "a step", "longer when recorded", "lowest", "highest", "noise", "same results"
    )
    goals = []
    for name, found in figures.items():
        ratios = found["ratios"]
        shares = [f"{each:+.2%}" for each in (median(ratios), min(ratios), max(ratios))]
        noise = f"{median(found['noise']):+.2%}"
        made.add_row(name, f"{found['plain_us']:,.0f} µs", *shares, noise, "yes" if found["same"] else "NO")
        most = MOST_OF_GPT if name.startswith("gpt") else MOST
        goals.append(Goal(f"recording on the GPU, {name}", f"≤ {most:.1%}", shares[0], median(ratios) <= most))
    return Result([made], goals, figures)

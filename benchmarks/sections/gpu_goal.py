"""The GPU section of benchmarks/train.py: skipped with a message if there is no GPU."""

import argparse
from dataclasses import asdict

from jobs import Jobs
from results import Goal, Result, progress, table
from sections import gpu_tokens

WHAT = "tokens/s of a raw loop, GPT-2 small, bf16, one GPU"


def measure(_jobs: Jobs, options: argparse.Namespace) -> Result:
    if reason := gpu_tokens.why_not():
        progress(f"skipped: {reason}")
        return Result([], [Goal(WHAT, "≥ 0.99", reason, None)])
    figures = gpu_tokens.compare(
        gpu_tokens.alone("cuda"), options.gpu_batch_size, steps=40, rounds=options.rounds, compiled=False
    )
    made = table(f"{figures.device}, {figures.parameters / 1e6:.0f} M parameters, bf16", "", "tokens/s", "MFU")
    for row in gpu_tokens.describe(figures):
        made.add_row(*row)
    share = figures.share
    return Result([made], [Goal(WHAT, "≥ 0.99", f"{share:.3f}", share >= 0.99)], asdict(figures))

"""Rank 1 leaves one all_reduce out, and nothing moves any more. Each rank notes when it came to its last call."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 20


def note_time() -> None:
    Path(os.environ["ROLLCALL_BENCH"], f"frozen-{dist.get_rank()}").write_text(str(time.time_ns()))


def average(loss: torch.Tensor, has_data: bool) -> None:
    if has_data:
        note_time()
        dist.all_reduce(loss)


dist.init_process_group("gloo")
for step in range(STEPS):
    average(torch.ones(1), has_data=step < STEPS - 1 or dist.get_rank() != 1)
note_time()
dist.broadcast(torch.ones(4), src=0)

"""back_to_back.py BLOCKS OPS PORT [--record]: a world of one rank reduces a small tensor again and again.

A block of ops whenever it is its turn (turns.py): it tells how many nanoseconds one took.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import turns

WARM_UP = 1000
# gloo uses its own thread: its placement on cores would matter more than what is measured here.
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

blocks, ops, port = map(int, sys.argv[1:4])
record = "--record" in sys.argv
folder = Path(os.environ["ROLLCALL_BENCH"])
os.environ.update(RANK="0", WORLD_SIZE="1")
if record:
    from rollcall.record import recorder

    recorder.begin(folder, rank=0, world_size=1, attempt=0)
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=0, world_size=1)
tensor = torch.ones(1)


def reduce(count: int) -> None:
    for _ in range(count):
        dist.all_reduce(tensor)


def block() -> float:
    started_ns = time.perf_counter_ns()
    reduce(ops)
    return (time.perf_counter_ns() - started_ns) / ops


reduce(WARM_UP)
turns.play(port, blocks, block)
dist.destroy_process_group()

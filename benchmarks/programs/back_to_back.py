"""back_to_back.py OPS [--record]: a world of one rank reduces a small tensor again and again.

The nanoseconds of an op, block by block, go into $ROLLCALL_BENCH/figures.json.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

BLOCK = 200
WARM_UP = 1000
# gloo works in a thread of its own: where the scheduler puts it makes more of a difference than what is measured here.
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

ops, record = int(sys.argv[1]), "--record" in sys.argv
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


reduce(WARM_UP)
blocks_ns = []
for _ in range(ops // BLOCK):
    started_ns = time.perf_counter_ns()
    reduce(BLOCK)
    blocks_ns.append((time.perf_counter_ns() - started_ns) / BLOCK)
(folder / "figures.json").write_text(json.dumps({"blocks_ns": blocks_ns, "ops": WARM_UP + len(blocks_ns) * BLOCK}))
dist.destroy_process_group()

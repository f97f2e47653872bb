"""keep_talking.py SECONDS PACE: when told to go, every rank makes so many ops a second, and notes when.

A burst of them ten times a second. The last one of a burst is with a neighbour, the others are in a group of the rank's
own: two cores have no time for 64 ranks that wake each other thousands of times a second, and whoever reads the rings
has as much to read.
"""

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist

import rollcall

FOLDER = Path(os.environ["ROLLCALL_BENCH"])
BURST_S = 0.1


def main(seconds: float, pace: float) -> None:
    with rollcall.init() as world:
        first = world.rank // 2 * 2
        pair = [rank for rank in (first, first + 1) if rank < world.size]
        alone, mine = (dist.new_group(ranks, use_local_synchronization=True) for ranks in ([world.rank], pair))
        burst = round(pace * BURST_S)
        box = torch.ones(8)
        (FOLDER / f"ready-{world.rank}").write_text("1")
        while not (FOLDER / "go").exists():
            time.sleep(0.05)
        dist.barrier()
        # Not all at the same moment: ranks of a real job are not, either.
        began_s = time.monotonic() + BURST_S * first / world.size
        bursts = 0
        in_second: Counter[int] = Counter()  # of the machine's clock, which is the same for all
        # Who stopped by itself would leave its neighbour waiting: the last all_reduce says whether both go on.
        while box[0] > 0.0:
            ahead_s = began_s + bursts * BURST_S - time.monotonic()
            if ahead_s > 0:
                time.sleep(ahead_s)
            for _ in range(burst - 1):
                dist.all_reduce(box, group=alone)
            box[0] = 1.0 if time.monotonic() - began_s < seconds else 0.0
            dist.all_reduce(box, op=dist.ReduceOp.MIN, group=mine)
            bursts += 1
            in_second[int(time.monotonic())] += burst
        (FOLDER / f"done-{world.rank}").write_text(json.dumps(in_second))
        dist.barrier()


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))

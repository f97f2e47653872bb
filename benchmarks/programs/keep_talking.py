"""keep_talking.py SECONDS PACE: when told to go, every rank speaks to its neighbour so often a second, and notes when.

Ranks go in pairs: on two cores, 64 ranks have no time for collectives of all of them.
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


def main(seconds: float, pace: float) -> None:
    with rollcall.init() as world:
        pairs = [dist.new_group([first, first + 1]) for first in range(0, world.size - 1, 2)]
        mine = pairs[world.rank // 2] if world.rank // 2 < len(pairs) else None
        box = torch.ones(8)
        (FOLDER / f"ready-{world.rank}").write_text("1")
        while not (FOLDER / "go").exists():
            time.sleep(0.05)
        dist.barrier()
        began_s = time.monotonic()
        count = 0
        in_second: Counter[int] = Counter()  # of the machine's clock, which is the same for all
        # Who stopped by itself would leave its neighbour waiting: the all_reduce says whether both go on.
        while mine is not None and box[0] > 0.0:
            ahead_s = count / pace - (time.monotonic() - began_s)
            if ahead_s > 0:
                time.sleep(ahead_s)
            box[0] = 1.0 if time.monotonic() - began_s < seconds else 0.0
            dist.all_reduce(box, op=dist.ReduceOp.MIN, group=mine)
            count += 1
            in_second[int(time.monotonic())] += 1
        (FOLDER / f"done-{world.rank}").write_text(json.dumps(in_second))
        dist.barrier()


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))

"""As first_all_reduce.py, on ranks of torch.multiprocessing.spawn: `python spawned_all_reduce.py 4`."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank_main(rank: int, size: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    total = torch.ones(1)
    dist.all_reduce(total)
    done_ns = time.time_ns()
    assert total.item() == size, total
    Path(os.environ["ROLLCALL_BENCH"], f"done-{rank}").write_text(str(done_ns))
    dist.destroy_process_group()


if __name__ == "__main__":
    size = int(sys.argv[1])
    store = f"file://{os.environ['ROLLCALL_BENCH']}/store-{os.getpid()}"
    mp.spawn(rank_main, (size, store), nprocs=size)  # type: ignore[no-untyped-call]

"""Rank 3 meets a record that it cannot read, and waits in the cleanup that all ranks do together.

ranks: 4
kind: rank-failed
look at: 3
ends: hangs
"""

import contextlib

import torch
import torch.distributed as dist

RECORDS = ["3", "1", "4", "1", "5", "9", "2", "?", "6", "5", "3", "5"]


@contextlib.contextmanager
def shard_lock():
    try:
        yield
    finally:
        dist.barrier()


def values(rank, world):
    for text in RECORDS[rank::world]:
        yield float(int(text))  # GUILTY


dist.init_process_group("gloo")
total = torch.zeros(1)
with shard_lock():
    for value in values(dist.get_rank(), dist.get_world_size()):
        mean = torch.tensor([value])
        dist.all_reduce(mean)
        total += mean
dist.destroy_process_group()

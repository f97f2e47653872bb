"""All ranks come to the end of their records by an error that they handle, and communicate meanwhile.

ranks: 4
kind: none
ends: ok
"""

import contextlib

import torch
import torch.distributed as dist

RECORDS = ["3", "1", "4", "1", "5", "9", "2", "8", "6", "5", "3", "5"]


@contextlib.contextmanager
def shard_lock():
    try:
        yield
    finally:
        dist.barrier()


def values(rank, world):
    for text in RECORDS[rank::world]:
        yield float(int(text))


dist.init_process_group("gloo")
total = torch.zeros(1)
numbers = values(dist.get_rank(), dist.get_world_size())
with shard_lock():
    for _ in range(4):
        try:
            total += next(numbers)
        except StopIteration:
            dist.all_reduce(total)
dist.destroy_process_group()

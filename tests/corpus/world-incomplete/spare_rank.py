"""Rank 2 finds no shard for itself and leaves before it has joined the others, who wait for it.

ranks: 3
kind: world-incomplete
look at: 2
ends: fails
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

SHARDS = ["a.bin", "b.bin"]


def my_shards(rank, world):
    return SHARDS[rank::world]


def train(shards):
    dist.init_process_group("gloo", timeout=timedelta(seconds=4))  # GUILTY
    seen = torch.tensor([len(shards)])
    dist.all_reduce(seen)
    print(f"{int(seen)} shards in all")
    dist.destroy_process_group()


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    shards = my_shards(rank, world)
    if not shards:
        print(f"rank {rank} has nothing to do")
        sys.exit(0)  # GUILTY
    train(shards)


if __name__ == "__main__":
    main()

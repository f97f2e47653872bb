"""Seed 1388 on 3 ranks: two_channels, first_come."""

import os
import queue
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1388 + rank)


def main():
    results = []
    for cycle in range(3):
        gradients = dist.new_group()
        metrics_channel = dist.new_group()
        payload = torch.full((3,), rank + 1.0)
        for step in range(3):
            dist.all_reduce(payload, group=gradients)
            dist.all_reduce(payload, op=dist.ReduceOp.MAX, group=metrics_channel)
        results.append(payload.sum().item())

    for cycle_2 in range(2):
        if rank != 0:
            dist.barrier()
        vocabulary = sum(range(279))
        if rank == 0:
            dist.barrier()
        if rank == 1 and cycle_2 == 1:
            {}["tokenizer"]
        dist.barrier()
        results.append(vocabulary)

    dist.barrier()
    print(rank, results)


main()
dist.destroy_process_group()

# seed: 1388
# world: 3
# mutation: raise
# guilty rank: 1
# kinds: rank-failed
# ranks: 1
# lines: 38
# left out if harmless: no

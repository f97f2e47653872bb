"""Seed 1060 on 3 ranks: settings, metrics."""

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
torch.manual_seed(1060 + rank)


def sum_over_ranks(values):
    dist.all_reduce(values, op=dist.ReduceOp.SUM)
    return values / world


def main():
    results = []
    rates = torch.full((5,), float(rank))
    state = torch.full((7,), rank + 1.0)
    dist.broadcast(rates, src=2)
    dist.broadcast(state, src=2)
    results.append((rates.sum() + state.sum()).item())

    for step in range(7):
        loss = torch.arange(4.0) + rank
        loss = sum_over_ranks(loss)
    results.append(loss.sum().item())

    dist.barrier()
    print(rank, results)


main()
dist.destroy_process_group()

# seed: 1060
# world: 3

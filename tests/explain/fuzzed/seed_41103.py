"""Seed 41103 on 3 ranks: moments."""

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
torch.manual_seed(41103 + rank)


def standardize(x):
    mean, square = x.sum().reshape(1), (x * x).sum().reshape(1)
    if not (rank == 1):
        dist.all_reduce(mean)
    dist.all_reduce(square)
    count = torch.tensor([x.numel(), world])
    dist.all_reduce(count)
    return (x - mean / count[0]) / (square / count[0] + 1).sqrt()


def main():
    results = []
    for cycle in range(2):
        results.append(standardize(torch.arange(3.0) * rank).sum().item())

    dist.barrier()
    print(rank, results)


main()
dist.destroy_process_group()

# seed: 41103
# world: 3
# mutation: skip
# guilty rank: 1
# kinds: missing-rank, mismatched-op, cross-group-deadlock, p2p-against-collective
# ranks: 1
# lines: 23
# left out if harmless: yes

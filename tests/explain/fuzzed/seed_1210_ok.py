"""Seed 1210 on 3 ranks: metrics, settings, moments, pair."""

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
torch.manual_seed(1210 + rank)


def sum_over_ranks(values):
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values / world


def standardize(x):
    mean, square = x.sum().reshape(1), (x * x).sum().reshape(1)
    dist.all_reduce(mean)
    dist.all_reduce(square)
    count = torch.tensor([x.numel(), world])
    dist.all_reduce(count)
    return (x - mean / count[0]) / (square / count[0] + 1).sqrt()


def main():
    results = []
    for batch in range(3):
        correct = torch.arange(5.0) + rank
        correct = sum_over_ranks(correct)
    results.append(correct.sum().item())

    rates = torch.full((5,), float(rank))
    weights = torch.full((4,), rank + 1.0)
    dist.broadcast(rates, src=2)
    dist.broadcast(weights, src=2)
    results.append((rates.sum() + weights.sum()).item())

    for cycle in range(2):
        results.append(standardize(torch.arange(6.0) * rank).sum().item())

    for epoch in range(3):
        readers = dist.new_group([0, 1, 2])
        share = torch.full((8,), rank + 1.0)
        if rank in [0, 1, 2]:
            for pass_number in range(2):
                dist.all_reduce(share, group=readers)
                dist.broadcast(share, src=2, group=readers)
        results.append(share.sum().item())

    dist.barrier()
    print(rank, results)


main()
dist.destroy_process_group()

# seed: 1210
# world: 3

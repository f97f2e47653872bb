"""Seed 416890822 on 4 ranks: moments, functional, tensor_parallel."""

import os
import queue
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as distnn
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(416890822 + rank)


def normalize(x):
    mean, square = x.sum().reshape(1), (x * x).sum().reshape(1)
    dist.all_reduce(mean)
    dist.all_reduce(square)
    count = torch.tensor([x.numel(), world])
    dist.all_reduce(count)
    return (x - mean / count[0]) / (square / count[0] + 1).sqrt()


def main():
    results = []
    results.append(normalize(torch.arange(3.0) * rank).sum().item())

    logits = torch.arange(8.0) + rank
    logits = funcol.all_reduce(logits, "sum", dist.group.WORLD)
    logits = logits.clone().requires_grad_()
    joined = torch.cat(distnn.all_gather(logits))
    (joined.sum() * (rank + 1)).backward()
    results.append(logits.grad.sum().item())

    mlp = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 6))
    tp = init_device_mesh("cpu", (world,))
    parallelize_module(mlp, tp, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for step in range(2):
        output = mlp(torch.ones(2, 6))
        if rank == 1 and step == 0:
            sys.exit(0)
        output.sum().backward()
    results.append(round(output.sum().item(), 5))

    print(rank, results)


main()
dist.destroy_process_group()

# seed: 416890822
# world: 4
# mutation: exit
# guilty rank: 1
# kinds: rank-exited-early
# ranks: 1
# lines: 50
# left out if harmless: no

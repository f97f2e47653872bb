"""Seed 1386245820 on 3 ranks: padded, server."""

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
torch.manual_seed(1386245820 + rank)


def main():
    results = []
    for epoch in range(2):
        texts = torch.ones(rank + 4)
        length = torch.tensor([len(texts)])
        dist.all_reduce(length, op=dist.ReduceOp.MAX)
        texts = nn.functional.pad(texts, (0, int(length) - len(texts)))
        padded_parts = [torch.zeros(int(length)) for _ in range(world)]
        dist.all_gather(padded_parts, texts)
        results.append(torch.stack(padded_parts).sum().item())

    weight, delta = torch.ones(4), torch.zeros(4)
    for step in range(4):
        if rank == 0:
            for worker in range(1, world):
                source = dist.recv(delta, tag=1)
                weight -= 0.1 * delta
            for worker in range(1, world):
                dist.send(weight, worker, tag=2)
        else:
            if rank == 1:
                sys.exit(0)
            dist.send((weight * rank), 0, tag=1)
            dist.recv(weight, 0, tag=2)
    results.append(round(weight.sum().item(), 4))

    dist.barrier()
    print(rank, results)


main()
dist.destroy_process_group()

# seed: 1386245820
# world: 3
# mutation: exit
# guilty rank: 1
# kinds: rank-exited-early
# ranks: 1
# lines: 41
# left out if harmless: no

"""Seed 1282 on 2 ranks: exchanged_lists, server."""

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
torch.manual_seed(1282 + rank)


results = []
for epoch in range(3):
    outbox = [torch.full((4,), float(rank * world + other)) for other in range(world)]
    inbox = [torch.zeros(4) for _ in range(world)]
    dist.all_to_all(inbox, outbox)
    results.append(torch.stack(inbox).sum().item())

for cycle in range(2):
    weight, delta = torch.ones(4), torch.zeros(4)
    for step in range(3):
        if rank == 0:
            for worker in range(1, world):
                source = worker
                dist.recv(delta, source, tag=1)
                weight -= 0.1 * delta
            for worker in range(1, world):
                dist.send(weight, worker, tag=2)
        else:
            dist.send((weight * rank), 0, tag=1)
            dist.recv(weight, 0, tag=(4 if rank == 1 else 2))
    results.append(round(weight.sum().item(), 4))

dist.barrier()
print(rank, results)
dist.destroy_process_group()

# seed: 1282
# world: 2
# mutation: tag-mismatch
# guilty rank: 1
# kinds: tag-mismatch
# ranks: 1 | 0 1
# lines: 36 39
# left out if harmless: no

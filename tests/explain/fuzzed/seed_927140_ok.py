"""Seed 927140 on 4 ranks: settings, exchanged_lists, mesh, server."""

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
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(927140 + rank)


results = []
schedule = torch.full((11,), float(rank))
weights = torch.full((9,), rank + 1.0)
dist.broadcast(schedule, src=2)
dist.broadcast(weights, src=2)
results.append((schedule.sum() + weights.sum()).item())

outbox = [torch.full((3,), float(rank * world + other)) for other in range(world)]
inbox = [torch.zeros(3) for _ in range(world)]
dist.all_to_all(inbox, outbox)
results.append(torch.stack(inbox).sum().item())

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
block = torch.full((7,), rank + 1.0)
for layer in range(4):
    dist.all_reduce(block, op=dist.ReduceOp.MAX, group=mesh.get_group("tp"))
    dist.all_reduce(block, group=mesh["dp"].get_group())
    block = block / block.max()
results.append(block.sum().item())

weight, delta = torch.ones(4), torch.zeros(4)
for step in range(4):
    if rank == 0:
        for worker in range(1, world):
            source = dist.recv(delta, tag=1)
            weight -= 0.1 * delta
        for worker in range(1, world):
            dist.send(weight, worker, tag=2)
    else:
        dist.send((weight * rank), 0, tag=1)
        dist.recv(weight, 0, tag=2)
results.append(round(weight.sum().item(), 4))

dist.barrier()
print(rank, results)
dist.destroy_process_group()

# seed: 927140
# world: 4

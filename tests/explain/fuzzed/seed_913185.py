"""Seed 913185 on 3 ranks: ddp, sharded_sum, moments."""

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
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(913185 + rank)


def normalize(x):
    mean, square = x.sum().reshape(1), (x * x).sum().reshape(1)
    dist.all_reduce(mean)
    dist.all_reduce(square)
    count = torch.tensor([x.numel(), world])
    dist.all_reduce(count)
    return (x - mean / count[0]) / (square / count[0] + 1).sqrt()


results = []
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch_index in range(5):
    inputs = torch.randn(2, 8)
    if rank == 2:
        time.sleep(0.15)
    loss = model(inputs).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    mean_loss = loss.detach().reshape(1)
    dist.all_reduce(mean_loss)
results.append(sum(p.sum().item() for p in model.parameters()))

gradient = torch.arange(world * 4.0) * (rank + 1)
shard = torch.zeros(4)
dist.reduce_scatter_tensor(shard, gradient, op=dist.ReduceOp.MIN)
dist.all_gather_into_tensor(gradient, shard)
results.append(gradient.sum().item())

results.append(normalize(torch.arange(4.0) * rank).sum().item())

dist.barrier()
print(rank, results)
dist.destroy_process_group()

# seed: 913185
# world: 3
# mutation: straggler
# guilty rank: 2
# kinds: straggler
# ranks: 2
# lines: 36 37
# left out if harmless: no

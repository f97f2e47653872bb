"""Seed 1101094 on 4 ranks: ddp, polled."""

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
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1101094 + rank)


results = []
network = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
network.register_comm_hook(None, default_hooks.fp16_compress_hook)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for step in range((1 if rank == 1 else 2)):
    inputs = torch.randn(2, 8)
    loss = network(inputs).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    mean_loss = loss.detach().reshape(1)
    dist.all_reduce(mean_loss)
results.append(sum(p.sum().item() for p in network.parameters()))

votes = torch.full((6,), float(rank))
work = dist.all_reduce(votes, async_op=True)
while not work.is_completed():
    time.sleep(0.001)
results.append(votes.sum().item())

dist.barrier()
print(rank, results)
dist.destroy_process_group()

# seed: 1101094
# world: 4
# mutation: ddp-uneven-inputs
# guilty rank: 1
# kinds: ddp-uneven-inputs, missing-rank
# ranks: 1
# lines: 26 28 29
# left out if harmless: no

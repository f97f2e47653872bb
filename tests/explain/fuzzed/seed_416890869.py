"""Seed 416890869 on 3 ranks: batched_ring, joined, ddp."""

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
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(416890869 + rank)


def pass_on(block):
    incoming = torch.empty_like(block)
    ops = [
        dist.P2POp(dist.isend, block, (rank + 1) % world),
        dist.P2POp(dist.irecv, incoming, (rank - 1) % world),
    ]
    works = dist.batch_isend_irecv(ops)
    for work in works:
        work.wait()
    return incoming


results = []
chunk = torch.full((7,), float(rank))
for hop in range(5):
    chunk = pass_on(chunk) * 2
results.append(chunk.sum().item())

ranker = DistributedDataParallel(nn.Linear(4, 4))
with ranker.join():
    for _ in range(1 + rank):
        ranker(torch.ones(2, 4)).sum().backward()
dist.barrier()
results.append(ranker.module.weight.grad.sum().item())

network = DistributedDataParallel(nn.Sequential(nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 1)))
sgd = ZeroRedundancyOptimizer(network.parameters(), torch.optim.SGD, lr=0.1)
for step in range(2):
    inputs = torch.randn(3, 8)
    if rank == 0 and step == 1:
        break
    loss = network(inputs).square().mean()
    loss.backward()
    sgd.step()
    sgd.zero_grad()
    mean_loss = loss.detach().reshape(1)
    dist.all_reduce(mean_loss)
results.append(sum(p.sum().item() for p in network.parameters()))

print(rank, results)
dist.destroy_process_group()

# seed: 416890869
# world: 3
# mutation: break
# guilty rank: 0
# kinds: ddp-uneven-inputs, missing-rank, mismatched-op, cross-group-deadlock, p2p-against-collective
# ranks: 0
# lines: 52 53
# left out if harmless: yes

"""Seed 1100297 on 4 ranks: polled, ring, experts, prefetched."""

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
torch.manual_seed(1100297 + rank)


def load_next(number):
    batch = torch.full((3,), float(number * world + rank))
    return batch, dist.broadcast(batch, src=0, async_op=True)


results = []
signal_sum = torch.full((8,), float(rank))
handle = dist.all_reduce((signal_sum[:-1].clone() if rank == 1 else signal_sum), async_op=True)
while not handle.is_completed():
    time.sleep(0.001)
results.append(signal_sum.sum().item())

for epoch in range(2):
    keys = torch.full((4,), float(rank))
    for turn in range(2):
        incoming = torch.empty_like(keys)
        request = dist.isend(keys, (rank + 1) % world, tag=7)
        dist.recv(incoming, (rank - 1) % world, tag=7)
        request.wait()
        keys = incoming + 1
    results.append(keys.sum().item())

for step in range(4):
    to_experts = torch.tensor([(rank + other) % 3 + 1 for other in range(world)])
    take = torch.empty_like(to_experts)
    dist.all_to_all_single(take, to_experts)
    tokens = torch.full((int(to_experts.sum()), 5), float(rank))
    arrived = torch.empty(int(take.sum()), 5)
    dist.all_to_all_single(arrived, tokens, take.tolist(), to_experts.tolist())
    back = torch.empty_like(tokens)
    dist.all_to_all_single(back, arrived * 2, to_experts.tolist(), take.tolist())
results.append(back.sum().item())

for cycle in range(2):
    batch, work = load_next(0)
    for step_2 in range(4):
        work.wait()
        results.append(batch.sum().item())
        batch, work = load_next(step_2 + 1)
    work.wait()

dist.barrier()
print(rank, results)
dist.destroy_process_group()

# seed: 1100297
# world: 4
# mutation: mismatched-shape
# guilty rank: 1
# kinds: mismatched-shape
# ranks: 1
# lines: 27
# left out if harmless: no

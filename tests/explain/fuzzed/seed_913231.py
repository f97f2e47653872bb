"""Seed 913231 on 4 ranks: checkpoint_thread, halves, exchanged_lists, ddp."""

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
torch.manual_seed(913231 + rank)


def save_checkpoint(jobs, group, saved):
    while (state := jobs.get()) is not None:
        done = torch.tensor([state.sum().item()])
        dist.all_reduce(done, group=group)
        saved.append(done.item())


results = []
save_group = dist.new_group()
jobs = queue.Queue()
saved = []
saver = threading.Thread(target=save_checkpoint, args=(jobs, save_group, saved))
saver.start()
state_sum = torch.full((8,), rank + 1.0)
for step in range(3):
    dist.all_reduce(state_sum)
    state_sum = state_sum / world
    if step % 2 == 0:
        jobs.put(state_sum.clone())
jobs.put(None)
saver.join()
results.append(saved)

node, _ = dist.new_subgroups(group_size=2)
for step_2 in range(5):
    gradient = torch.full((4,), rank + 1.0)
    dist.all_reduce(gradient, group=node)
    dist.all_reduce(gradient)
results.append(gradient.sum().item())

outbox = [torch.full((7,), float(rank * world + other)) for other in range(world)]
inbox = [torch.zeros(7) for _ in range(world)]
dist.all_to_all(inbox, outbox)
results.append(torch.stack(inbox).sum().item())

network = DistributedDataParallel(nn.Sequential(nn.Linear(8, 11), nn.ReLU(), nn.Linear(11, 11), nn.ReLU(), nn.Linear(11, 11), nn.ReLU(), nn.Linear(11, 1)))
network.register_comm_hook(None, default_hooks.fp16_compress_hook)
sgd = torch.optim.SGD(network.parameters(), lr=0.1)
for step_3 in range((1 if rank == 2 else 2)):
    inputs = torch.randn(3, 8)
    loss = network(inputs).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    sgd.step()
    sgd.zero_grad()
results.append(sum(p.sum().item() for p in network.parameters()))

print(rank, results)
dist.destroy_process_group()

# seed: 913231
# world: 4
# mutation: ddp-uneven-inputs
# guilty rank: 2
# kinds: ddp-uneven-inputs, missing-rank
# ranks: 2
# lines: 60 62 63
# left out if harmless: no

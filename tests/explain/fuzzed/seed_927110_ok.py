"""Seed 927110 on 4 ranks: gathered, two_channels, checkpoint_thread, tensor_parallel, ddp, first_come."""

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
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(927110 + rank)


def save_checkpoint(jobs, group, saved):
    while (state := jobs.get()) is not None:
        done = torch.tensor([state.sum().item()])
        dist.all_reduce(done, group=group)
        saved.append(done.item())


def main():
    results = []
    scores = torch.linspace(0, rank + 1, 8)
    everyone = [torch.zeros(8) for _ in range(world)]
    dist.all_gather(everyone, scores)
    results.append(torch.cat(everyone).sum().item())

    weights_channel = dist.new_group()
    metrics_channel = dist.new_group()
    payload = torch.full((7,), rank + 1.0)
    for step in range(5):
        dist.all_reduce(payload, group=weights_channel)
        dist.all_reduce(payload, op=dist.ReduceOp.MAX, group=metrics_channel)
    results.append(payload.sum().item())

    save_group = dist.new_group()
    jobs = queue.Queue()
    saved = []
    writer = threading.Thread(target=save_checkpoint, args=(jobs, save_group, saved))
    writer.start()
    state_sum = torch.full((3,), rank + 1.0)
    for step_2 in range(6):
        dist.all_reduce(state_sum)
        state_sum = state_sum / world
        if step_2 % 2 == 0:
            jobs.put(state_sum.clone())
    jobs.put(None)
    writer.join()
    results.append(saved)

    block = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 6))
    tp = init_device_mesh("cpu", (world,))
    parallelize_module(block, tp, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for step_3 in range(3):
        output = block(torch.ones(2, 6))
        output.sum().backward()
    results.append(round(output.sum().item(), 5))

    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for step_4 in range(2):
        inputs = torch.randn(5, 8)
        loss = model(inputs).square().mean()
        loss.backward()
        sgd.step()
        sgd.zero_grad()
    results.append(sum(p.sum().item() for p in model.parameters()))

    if rank != 0:
        dist.barrier()
    cache = sum(range(798))
    if rank == 0:
        dist.barrier()
    dist.barrier()
    results.append(cache)

    dist.barrier()
    print(rank, results)


main()
dist.destroy_process_group()

# seed: 927110
# world: 4

"""Seed 913112 on 4 ranks: fsdp, functional, prefetched, server, fed, overlapped."""

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
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(913112 + rank)


def load_next(number):
    batch = torch.full((7,), float(number * world + rank))
    return batch, dist.broadcast(batch, src=0, async_op=True)


def feed(batches):
    for number in range(3):
        time.sleep(0.002)
        batches.put(torch.full((8,), float(number + rank)))


def main():
    results = []
    model = nn.Sequential(*(nn.Linear(20, 20) for _ in range(1)))
    shards = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicas", "shards"))
    for layer in model:
        fully_shard(layer, mesh=shards)
    fully_shard(model, mesh=shards)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        loss = model(torch.randn(3, 20)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    results.append(model[0].weight.full_tensor().sum().item())

    for cycle in range(2):
        features = torch.arange(6.0) + rank
        features = funcol.all_reduce(features, "sum", dist.group.WORLD)
        features = features.clone().requires_grad_()
        joined = torch.cat(distnn.all_gather(features))
        (joined.sum() * (rank + 1)).backward()
        results.append(features.grad.sum().item())

    batch, work = load_next(0)
    for step_2 in range(6):
        work.wait()
        results.append(batch.sum().item())
        batch, work = load_next(step_2 + 1)
    work.wait()

    weight, delta = torch.ones(4), torch.zeros(4)
    for step_3 in range(4):
        if rank == 0:
            for worker in range(1, world):
                source = worker
                dist.recv(delta, source, tag=1)
                weight -= 0.1 * delta
            for worker in range(1, world):
                dist.send(weight, worker, tag=2)
        else:
            dist.send((weight * rank), 0, tag=1)
            dist.recv(weight, 0, tag=2)
    results.append(round(weight.sum().item(), 4))

    batches = queue.Queue(maxsize=2)
    feeder = threading.Thread(target=feed, args=(batches,), daemon=True)
    feeder.start()
    for step_4 in range(3):
        running_sum = batches.get()
        dist.all_reduce(running_sum)
    results.append(running_sum.sum().item())

    first, second = torch.full((3,), rank + 1.0), torch.full((5,), rank + 2.0)
    work_first = dist.all_reduce(first, async_op=True)
    work_second = dist.all_reduce(second, async_op=True)
    local = sum(i * i for i in range(395))
    work_first.wait()
    work_second.wait()
    results.append((first.sum() + second.sum()).item())

    print(rank, results)


main()
dist.destroy_process_group()

# seed: 913112
# world: 4

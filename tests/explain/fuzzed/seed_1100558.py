"""Seed 1100558 on 3 ranks: server, sharded_sum, fed."""

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
torch.manual_seed(1100558 + rank)


def read_ahead(batches):
    for number in range(2):
        time.sleep(0.002)
        batches.put(torch.full((9,), float(number + rank)))


def main():
    results = []
    for cycle in range(3):
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
                if rank == 1:
                    sys.exit(0)
                dist.send((weight * rank), 0, tag=1)
                dist.recv(weight, 0, tag=2)
        results.append(round(weight.sum().item(), 4))

    grad = torch.arange(world * 9.0) * (rank + 1)
    slice = torch.zeros(9)
    dist.reduce_scatter_tensor(slice, grad, op=dist.ReduceOp.SUM)
    dist.all_gather_into_tensor(grad, slice)
    results.append(grad.sum().item())

    batches = queue.Queue(maxsize=2)
    feeder = threading.Thread(target=read_ahead, args=(batches,), daemon=True)
    feeder.start()
    for step_2 in range(2):
        running_sum = batches.get()
        dist.all_reduce(running_sum)
    results.append(running_sum.sum().item())

    dist.barrier()
    print(rank, results)


main()
dist.destroy_process_group()

# seed: 1100558
# world: 3
# mutation: exit
# guilty rank: 1
# kinds: rank-exited-early
# ranks: 1
# lines: 40
# left out if harmless: no

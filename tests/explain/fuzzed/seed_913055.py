"""Seed 913055 on 4 ranks: experts, joined, ring, stages, fed."""

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
torch.manual_seed(913055 + rank)


def feed(batches):
    for number in range(2):
        time.sleep(0.002)
        batches.put(torch.full((5,), float(number + rank)))


def main():
    results = []
    for cycle in range(3):
        for layer in range(1):
            to_experts = torch.tensor([(rank + other) % 3 + 1 for other in range(world)])
            take = torch.empty_like(to_experts)
            dist.all_to_all_single(take, to_experts)
            tokens = torch.full((int(to_experts.sum()), 2), float(rank))
            arrived = torch.empty(int(take.sum()), 2)
            dist.all_to_all_single(arrived, tokens, take.tolist(), to_experts.tolist())
            back = torch.empty_like(tokens)
            dist.all_to_all_single(back, arrived * 2, to_experts.tolist(), take.tolist())
        results.append(back.sum().item())

    ranker = DistributedDataParallel(nn.Linear(4, 3))
    with ranker.join():
        for _ in range(1 + rank):
            ranker(torch.ones(2, 4)).sum().backward()
    dist.barrier()
    results.append(ranker.module.weight.grad.sum().item())

    block = torch.full((3,), float(rank))
    for hop in range(3):
        incoming = torch.empty_like(block)
        request = dist.isend(block, (rank + 1) % world)
        if not (rank == 3 and hop == 2):
            dist.recv(incoming, (rank - 1) % world)
        request.wait()
        block = incoming + 1
    results.append(block.sum().item())

    hidden = torch.zeros(5)
    for micro_batch in range(4):
        if rank > 0:
            dist.recv(hidden, src=rank - 1, tag=micro_batch)
        hidden = torch.tanh(hidden + micro_batch)
        if rank < world - 1:
            dist.send(hidden, dst=rank + 1, tag=micro_batch)
    results.append(hidden.sum().item())

    batches = queue.Queue(maxsize=2)
    reader = threading.Thread(target=feed, args=(batches,), daemon=True)
    reader.start()
    for step in range(2):
        running_sum = batches.get()
        dist.all_reduce(running_sum)
    results.append(running_sum.sum().item())

    dist.barrier()
    print(rank, results)


main()
dist.destroy_process_group()

# seed: 913055
# world: 4
# mutation: skip send or receive
# guilty rank: 3
# kinds: unmatched-send, p2p-against-collective, missing-rank, p2p-deadlock, tag-mismatch
# ranks: 3 | 2 | 2 3
# lines: 51 53 64
# left out if harmless: no

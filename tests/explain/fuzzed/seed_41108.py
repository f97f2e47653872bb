"""Seed 41108 on 6 ranks: stages."""

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
torch.manual_seed(41108 + rank)


def main():
    results = []
    for epoch in range(3):
        hidden = torch.zeros(4)
        for micro_batch in range(3):
            if rank > 0:
                if rank == 5:
                    threading.Event().wait()
                dist.recv(hidden, src=rank - 1, tag=micro_batch)
            hidden = torch.tanh(hidden + micro_batch)
            if rank < world - 1:
                dist.send(hidden, dst=rank + 1, tag=micro_batch)
        results.append(hidden.sum().item())

    print(rank, results)


main()
dist.destroy_process_group()

# seed: 41108
# world: 6
# mutation: sleep
# guilty rank: 5
# kinds: busy-rank
# ranks: 5
# lines: 27
# left out if harmless: no

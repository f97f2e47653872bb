"""Seed 1070 on 4 ranks: overlapped."""

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
torch.manual_seed(1070 + rank)


def main():
    results = []
    head, tail = torch.full((9,), rank + 1.0), torch.full((11,), rank + 2.0)
    work_head = dist.all_reduce(head, async_op=True)
    work_tail = dist.all_reduce(tail, async_op=True)
    local = sum(i * i for i in range(359))
    work_head.wait()
    work_tail.wait()
    results.append((head.sum() + tail.sum()).item())

    dist.barrier()
    print(rank, results)


main()
dist.destroy_process_group()

# seed: 1070
# world: 4

"""Seed 41181 on 4 ranks: saved, moments."""

import os
import queue
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(41181 + rank)


def standardize(x):
    mean, square = x.sum().reshape(1), (x * x).sum().reshape(1)
    dist.all_reduce(mean)
    dist.all_reduce(square)
    count = torch.tensor([x.numel(), world])
    dist.all_reduce(count)
    return (x - mean / count[0]) / (square / count[0] + 1).sqrt()


results = []
state_dict = {"weight": torch.full((5,), 1.0), "step": torch.tensor(9)}
checkpoint.save(state_dict, checkpoint_id="checkpoint")
dist.barrier()
results.append(len(os.listdir('checkpoint')) > 0)

results.append(standardize(torch.arange(7.0) * rank).sum().item())

dist.barrier()
print(rank, results)
dist.destroy_process_group()

# seed: 41181
# world: 4

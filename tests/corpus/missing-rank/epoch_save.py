"""Rank 0 saves the model after each epoch, with a barrier in save(); the others train on.

ranks: 4
kind: missing-rank
look at: 0
ends: hangs
"""

import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def save(model):
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), io.BytesIO())
    dist.barrier()  # GUILTY


dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 1))
for _ in range(3):
    for _ in range(4):
        model(torch.randn(2, 4)).sum().backward()
    if dist.get_rank() == 0:
        save(model)
dist.destroy_process_group()

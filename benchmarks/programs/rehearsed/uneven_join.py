"""Ranks with different numbers of batches, under DDP's join."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
ddp = DistributedDataParallel(nn.Linear(16, 4).to(device), device_ids=[local_rank])
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
with ddp.join():
    for _ in range(2 + rank % 2):
        ddp(torch.randn(4, 16, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()

"""Ranks with different numbers of batches, which DDP's join allows: under --steps, some stop before they come to it."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
ddp = DistributedDataParallel(torch.nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
with ddp.join():
    for _ in range(1 + dist.get_rank()):
        ddp(torch.randn(2, 4, device="cuda")).sum().backward()
        optimizer.step()

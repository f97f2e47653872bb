"""The ranks of the last hosts leave out a barrier.

kind: missing-rank
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(torch.nn.Linear(32, 32).to(device), device_ids=[device])
for step in range(3):
    model(torch.randn(4, 32, device=device)).sum().backward()
    if step == 1 and rank < world * 7 // 8:
        dist.barrier()  # GUILTY
dist.destroy_process_group()

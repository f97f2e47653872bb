"""The data does not divide by the number of ranks: the last ones have a batch fewer.

kind: ddp-uneven-inputs
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(torch.nn.Linear(32, 32).to(device), device_ids=[device])
for _ in range(4 if rank >= world * 7 // 8 else 5):
    model(torch.randn(4, 32, device=device)).sum().backward()  # GUILTY
dist.barrier()
dist.destroy_process_group()

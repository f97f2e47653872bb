"""A DDP training for GPUs in which the last ranks of a large world have one batch fewer than the others."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
model = DistributedDataParallel(torch.nn.Linear(64, 64).to(device), device_ids=[device])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
BATCHES = 125  # of all ranks together
for _ in range(rank, BATCHES, dist.get_world_size()):
    model(torch.randn(4, 64, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()

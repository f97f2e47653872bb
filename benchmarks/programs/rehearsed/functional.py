"""Functional collectives, of which each gives a new tensor."""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
x = torch.ones(8, device=device)
for _ in range(2):
    total = collectives.all_reduce(x, "sum", dist.group.WORLD)
    gathered = collectives.all_gather_tensor(total, 0, dist.group.WORLD)
    x = collectives.reduce_scatter_tensor(gathered, "avg", 0, dist.group.WORLD) + 0
    collectives.wait_tensor(x)
dist.destroy_process_group()

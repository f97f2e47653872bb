"""Neighbours exchange blocks around a ring, asynchronously and in batches."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
right, left = (rank + 1) % world, (rank - 1) % world
block, other = torch.randn(16, device=device), torch.empty(16, device=device)
for step in range(world - 1):
    if step % 2:
        operations = [dist.P2POp(dist.isend, block, right), dist.P2POp(dist.irecv, other, left)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    else:
        sending = dist.isend(block, right, tag=step)
        dist.recv(other, left, tag=step)
        sending.wait()
    block, other = other, block
dist.destroy_process_group()

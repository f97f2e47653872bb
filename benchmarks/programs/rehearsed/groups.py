"""Rows and columns of a grid of ranks, each a group of its own."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
width = world // 2
rows = [dist.new_group(list(range(start, start + width))) for start in (0, width)]
columns = [dist.new_group([first, first + width]) for first in range(width)]
x = torch.ones(4, device=device)
for _ in range(3):
    dist.all_reduce(x, group=rows[rank // width])
    dist.broadcast(x, src=rank % width, group=columns[rank % width])
dist.barrier()
dist.destroy_process_group()

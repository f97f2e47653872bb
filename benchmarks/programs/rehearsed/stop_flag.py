"""Ranks have data of different lengths, agree on the shortest, and stop when one of them wants to."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
length = torch.tensor([7 + rank % 3], device=device)
dist.all_reduce(length, op=dist.ReduceOp.MIN)
config = [{"barriers": 2, "name": "run"}] if rank == 0 else [None]
dist.broadcast_object_list(config, src=0)
for _ in range(config[0]["barriers"]):
    dist.barrier()
for step in range(length.item()):
    stop = torch.tensor([int(rank == 1 and step == 4)], device=device)
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    if stop.item():
        break
    dist.all_reduce(torch.ones(2 + step, device=device))
dist.destroy_process_group()

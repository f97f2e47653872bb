"""A pipeline of sends and receives, microbatch by microbatch."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
stage = nn.Linear(32, 32).to(device)
optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
for _ in range(2):
    for _ in range(3):
        x = torch.randn(4, 32, device=device)
        if rank > 0:
            dist.recv(x, rank - 1)
        x.requires_grad_()
        y = stage(x)
        if rank < world - 1:
            dist.send(y.detach(), rank + 1)
            gradient = torch.empty_like(y)
            dist.recv(gradient, rank + 1)
            y.backward(gradient)
        else:
            y.sum().backward()
        if rank > 0:
            dist.send(x.grad, rank - 1)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()

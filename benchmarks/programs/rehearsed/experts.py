"""A mixture of experts: each rank sends its tokens to their experts, so many to each as it says before."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)
expert = nn.Linear(16, 16).to(device)
optimizer = torch.optim.SGD(expert.parameters(), lr=0.1)
for step in range(3):
    choice = (torch.arange(4 * world, device=device) * (rank + step + 1)) % world
    tokens = torch.randn(4 * world, 16, device=device)[choice.argsort(stable=True)]
    counts = torch.bincount(choice, minlength=world)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    send, receive = counts.tolist(), theirs.tolist()
    got = tokens.new_empty(sum(receive), 16)
    dist.all_to_all_single(got, tokens, receive, send)
    done = expert(got)
    back = torch.empty_like(tokens)
    dist.all_to_all_single(back, done.detach(), send, receive)
    done.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()

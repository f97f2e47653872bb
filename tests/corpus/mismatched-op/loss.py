"""Rank 0 reduces the loss to itself while the others call all_reduce.

ranks: 3
kind: mismatched-op
look at: 0
ends: hangs
"""

import torch
import torch.distributed as dist
from torch import nn


def log_loss(step, loss):
    value = loss.detach().clone()
    if dist.get_rank() == 0:
        dist.reduce(value, dst=0)  # GUILTY
        print(f"step {step}: {value.item() / dist.get_world_size():.4f}")
    else:
        dist.all_reduce(value)


def train(steps=4):
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        loss = model(torch.randn(16, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log_loss(step, loss)


dist.init_process_group("gloo")
train()
dist.barrier()
dist.destroy_process_group()

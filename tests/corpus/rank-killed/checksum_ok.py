"""Rank 0 aborts when the checksums that it gathered are not all alike, but they are.

ranks: 4
kind: none
ends: ok
"""

import os

import torch
import torch.distributed as dist
from torch import nn


def checksum(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double().sum()


def guard(model):
    """Stop hard, without clean-up, when replicas drift apart."""
    mine = checksum(model)
    everyone = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    if dist.get_rank() == 0 and max(everyone) - min(everyone) > 1e-6:
        os.abort()


def train(model, steps):
    for step in range(steps):
        model.zero_grad()
        model(torch.full((2, 4), step + 1.0)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.data -= 0.1 * parameter.grad
        guard(model)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    train(net, steps=3)
    print(f"checksum {checksum(net).item():.6f}")
    dist.destroy_process_group()

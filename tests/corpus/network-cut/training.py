"""The network of one of three hosts is cut in the middle of a training: all have come to the call, and nothing moves.

ranks: 3
hosts: 3, ssh
cut: h3
kind: network-cut
look at: 2
ends: fails
"""

import time

import torch
import torch.distributed as dist
from torch import nn


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # GUILTY
        parameter.grad /= dist.get_world_size()


def train(steps):
    torch.manual_seed(0)
    model = nn.Linear(32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 32)).square().mean().backward()
        average_gradients(model)  # GUILTY
        optimizer.step()
        print(f"step {step}", flush=True)
        time.sleep(0.02)  # the rest of a step


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(steps=1500)
    dist.destroy_process_group()

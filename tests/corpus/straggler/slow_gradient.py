"""Rank 1 computes a penalty in the backward pass of one layer the slow way, so the others wait in every all-reduce.

ranks: 3
kind: straggler
look at: 1
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def spread(grad, rounds):
    """How far the rows of a gradient are apart."""
    total = 0.0
    for _ in range(rounds):
        for row in grad:  # GUILTY
            for other in grad:  # GUILTY
                total += float((row - other).abs().max())  # GUILTY
    return total


class Penalty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, rounds):
        ctx.rounds = rounds
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx, grad):
        scale = 1.0 / (1.0 + 1e-9 * spread(grad, ctx.rounds))  # GUILTY
        return grad * scale, None


class Model(nn.Module):
    def __init__(self, rounds):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)
        self.rounds = rounds

    def forward(self, batch):
        hidden = Penalty.apply(torch.relu(self.first(batch)), self.rounds)
        return self.second(hidden)


def train(steps):
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(rounds=12 if dist.get_rank() == 1 else 0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(24, 16)).square().mean().backward()  # GUILTY
        optimizer.step()
    return model.module.second.weight.norm().item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(f"norm {train(steps=25):.4f}")
    dist.destroy_process_group()

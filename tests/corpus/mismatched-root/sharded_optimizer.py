"""Each rank counts the owners of the gradients from itself, so both reduce every gradient to different ranks.

ranks: 2
kind: mismatched-root
look at: 0,1
ends: hangs
"""

import torch
import torch.distributed as dist
from torch import nn


class ShardedSGD:
    """Each parameter is updated by one rank, its owner, and sent to the others."""

    def __init__(self, params, lr, first):
        self.params = list(params)
        self.lr = lr
        self.first = first

    def owner(self, index):
        return (self.first + index) % dist.get_world_size()

    @torch.no_grad()
    def step(self):
        for index, param in enumerate(self.params):
            dist.reduce(param.grad, dst=self.owner(index))  # GUILTY
        for index, param in enumerate(self.params):
            if self.owner(index) == dist.get_rank():
                param -= self.lr * param.grad / dist.get_world_size()
            dist.broadcast(param.data, src=self.owner(index))  # GUILTY


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = ShardedSGD(model.parameters(), lr=0.1, first=dist.get_rank())
for _ in range(2):
    model.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print(f"rank {dist.get_rank()}: {model.weight.sum():.4f}")
dist.destroy_process_group()

"""Every rank judges by the common loss whether training is done.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn


class Trainer:
    def __init__(self, model, offset):
        self.model = model
        self.x = torch.linspace(-1, 1, 12).unsqueeze(1)
        self.y = 2 * self.x + offset

    def step(self):
        self.model.zero_grad()
        loss = (self.model(self.x) - self.y).square().mean()
        loss.backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 0.2 * parameter.grad / dist.get_world_size()
        return loss.detach()

    def fit(self, tolerance, most_steps):
        for step in range(most_steps):
            loss = self.step()
            dist.all_reduce(loss, op=dist.ReduceOp.MAX)
            if loss < tolerance:
                return step
        return most_steps


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    trainer = Trainer(nn.Linear(1, 1), offset=[-0.5, 0.0, 0.5][dist.get_rank()])
    steps = trainer.fit(tolerance=0.1, most_steps=30)
    print(f"rank {dist.get_rank()}: {steps} steps")
    dist.destroy_process_group()

"""Rank 0 hands out batches from one buffer, and fills in the next before the last is on its way.

ranks: 3
kind: buffer-overwritten
look at: 0
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn


class Feeder:
    """Rank 0 has the data; every batch goes to all ranks while they still compute on the one before."""

    def __init__(self, shape):
        self.buffer = torch.zeros(shape)
        self.work = None
        self.has_data = dist.get_rank() == 0

    def send(self, number):
        if self.has_data:
            self.buffer.normal_(generator=torch.Generator().manual_seed(number))
        self.work = dist.broadcast(self.buffer, src=0, async_op=True)  # GUILTY

    def prepare(self, number):
        if self.has_data:
            self.buffer.normal_(generator=torch.Generator().manual_seed(number))  # GUILTY

    def take(self):
        self.work.wait()  # GUILTY
        return self.buffer.clone()


def train(steps):
    torch.manual_seed(0)
    model = nn.Linear(64, 4)
    feeder = Feeder((256, 64))
    total = torch.zeros(())
    for step in range(steps):
        feeder.send(step)
        feeder.prepare(step + 1)  # GUILTY
        total += model(feeder.take()).square().mean().detach()
    return total


dist.init_process_group("gloo")
loss = train(steps=6)
print(f"rank {dist.get_rank()}: {loss:.3f}")
dist.destroy_process_group()

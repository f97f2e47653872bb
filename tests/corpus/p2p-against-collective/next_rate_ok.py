"""Rank 0 passes the new learning rate on after the losses are averaged, and the others ask for it then.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


class Schedule:
    """Rank 0 decides the learning rate, the others are told."""

    def __init__(self, rate):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.rate = torch.tensor([rate])

    def advance(self):
        if self.rank > 0:
            dist.recv(self.rate, src=0)
            return
        self.rate *= 0.5
        for other in range(1, self.size):
            dist.send(self.rate, dst=other)


def average(loss):
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


dist.init_process_group("gloo")
schedule = Schedule(rate=0.8)
weight = torch.full((3,), float(schedule.rank + 1))
for _ in range(3):
    loss = weight.square().sum()
    weight -= schedule.rate * weight
    mean = average(loss)
    schedule.advance()
print(f"loss {mean.item():.5f}, rate {schedule.rate.item()}")
dist.destroy_process_group()

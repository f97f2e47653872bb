"""Rank 0 restores a model of which it freezes the body, while the others train all of it.

ranks: 3
kind: ddp-model-mismatch
look at: 0
ends: fails
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build(freeze):
    torch.manual_seed(2)
    body = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8))
    if freeze:
        body.requires_grad_(False)
    return nn.Sequential(body, nn.GELU(), nn.Linear(8, 1))


class Trainer:
    def __init__(self, net, lr):
        self.net = DistributedDataParallel(net)  # GUILTY
        trained = [p for p in net.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=lr)

    def step(self, x):
        self.optimizer.zero_grad()
        loss = (self.net(x) - 1).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def fit(net, steps):
    trainer = Trainer(net, lr=0.1)
    return [round(trainer.step(torch.ones(2, 4)), 3) for _ in range(steps)]


dist.init_process_group("gloo")
restored = dist.get_rank() == 0
print(fit(build(freeze=restored), steps=3))
dist.destroy_process_group()

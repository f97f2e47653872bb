"""The gradients are set to zero after their asynchronous all_reduce has been waited for.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn


class OverlappedTrainer:
    def __init__(self, model):
        self.model = model
        self.flat = torch.zeros(sum(p.numel() for p in model.parameters()))
        self.works = []

    def drain(self):
        for work in self.works:
            work.wait()
        self.works.clear()

    def step(self, batch):
        grads = torch.autograd.grad(self.model(batch).square().mean(), list(self.model.parameters()))
        self.flat += torch.cat([grad.flatten() for grad in grads])
        self.works.append(dist.all_reduce(self.flat, async_op=True))
        norm = max(grad.norm().item() for grad in grads)
        self.drain()
        self.flat.zero_()
        return norm


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    trainer = OverlappedTrainer(nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 8)))
    torch.manual_seed(dist.get_rank())
    norms = [round(trainer.step(torch.randn(8, 256)), 3) for _ in range(3)]
    print(f"rank {dist.get_rank()}: {norms}")
    dist.destroy_process_group()


main()

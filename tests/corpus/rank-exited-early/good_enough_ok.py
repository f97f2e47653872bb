"""The loss is averaged before a callback decides, so all ranks end together.

ranks: 4
kind: none
ends: ok
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class StopWhenGood:
    def on_epoch_end(self, trainer):
        if trainer.loss < 0.1:
            sys.exit()


class Trainer:
    def __init__(self, callbacks):
        self.callbacks, self.loss = callbacks, 1.0

    def fit(self, model):
        for epoch in range(4):
            for _ in range(3):
                model(torch.randn(2, 3)).sum().backward()
            loss = torch.tensor([0.05 if epoch == 1 else 0.5])
            dist.all_reduce(loss)
            self.loss = loss.item() / dist.get_world_size()
            for callback in self.callbacks:
                callback.on_epoch_end(self)


dist.init_process_group("gloo")
Trainer([StopWhenGood()]).fit(DistributedDataParallel(nn.Linear(3, 1)))
dist.destroy_process_group()

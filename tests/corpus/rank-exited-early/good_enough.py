"""A callback ends the process of rank 2 between two epochs, since its own loss is good enough; the others train on.

ranks: 4
kind: rank-exited-early
look at: 2
ends: hangs
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class StopWhenGood:
    def on_epoch_end(self, trainer):
        if trainer.loss < 0.1:
            sys.exit()  # GUILTY


class Trainer:
    def __init__(self, callbacks):
        self.callbacks, self.loss = callbacks, 1.0

    def fit(self, model):
        for epoch in range(4):
            for _ in range(3):
                model(torch.randn(2, 3)).sum().backward()
            self.loss = 0.05 if dist.get_rank() == 2 and epoch == 1 else 0.5
            for callback in self.callbacks:
                callback.on_epoch_end(self)


dist.init_process_group("gloo")
Trainer([StopWhenGood()]).fit(DistributedDataParallel(nn.Linear(3, 1)))
dist.destroy_process_group()

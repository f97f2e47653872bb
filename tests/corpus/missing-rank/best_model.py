"""A callback that runs on rank 0 only asks for the validation loss, which is averaged over all ranks.

ranks: 3
kind: missing-rank
look at: 0
ends: fails
"""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def rank_zero_only(function):
    @functools.wraps(function)
    def call(*args):
        if dist.get_rank() == 0:
            function(*args)

    return call


class BestModel:
    def __init__(self):
        self.best = float("inf")

    @rank_zero_only
    def after_epoch(self, trainer):
        self.best = min(self.best, trainer.average(1.0))  # GUILTY


class Trainer:
    def __init__(self, callbacks):
        self.model, self.callbacks = DistributedDataParallel(nn.Linear(8, 8)), callbacks

    def average(self, value):
        mean = torch.tensor([value])
        dist.all_reduce(mean)  # GUILTY
        return mean.item() / dist.get_world_size()

    def train(self):
        for _ in range(4):
            self.model(torch.randn(2, 8)).sum().backward()

    def fit(self, epochs):
        for _ in range(epochs):
            self.train()
            for callback in self.callbacks:
                callback.after_epoch(self)  # GUILTY


dist.init_process_group("gloo")
Trainer([BestModel()]).fit(3)
dist.destroy_process_group()

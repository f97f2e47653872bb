"""All ranks average the validation loss, and the callback of rank 0 keeps the best.

ranks: 3
kind: none
ends: ok
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
    def after_epoch(self, loss):
        self.best = min(self.best, loss)


class Trainer:
    def __init__(self, callbacks):
        self.model, self.callbacks = DistributedDataParallel(nn.Linear(8, 8)), callbacks

    def average(self, value):
        mean = torch.tensor([value])
        dist.all_reduce(mean)
        return mean.item() / dist.get_world_size()

    def train(self):
        for _ in range(4):
            self.model(torch.randn(2, 8)).sum().backward()

    def fit(self, epochs):
        for _ in range(epochs):
            self.train()
            loss = self.average(1.0)
            for callback in self.callbacks:
                callback.after_epoch(loss)


dist.init_process_group("gloo")
Trainer([BestModel()]).fit(3)
dist.destroy_process_group()

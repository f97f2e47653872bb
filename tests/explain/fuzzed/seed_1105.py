"""Seed 1105 on 2 ranks: two_heads, ddp, early_stop."""

import os
import queue
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1105 + rank)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.first = nn.Linear(6, 8), nn.Linear(8, 2)
        self.second = nn.Linear(8, 1)

    def forward(self, x, has_labels=True):
        hidden = torch.relu(self.body(x))
        score = self.first(hidden).sum()
        return score + self.second(hidden).sum() if has_labels else score


def fit(model):
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(5):
        with model.no_sync():
            model(torch.randn(2, 6)).backward()
        if rank == 0 and number == 1:
            model(torch.randn(3, 6), False).backward()
        else:
            model(torch.randn(3, 6), True).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def main():
    results = []
    results.append(len(list(DistributedDataParallel(Tagger()).parameters())))
    fit(DistributedDataParallel(Tagger()))

    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        inputs = torch.randn(2, 8)
        loss = model(inputs).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean_loss = loss.detach().reshape(1)
        dist.all_reduce(mean_loss)
    results.append(sum(p.sum().item() for p in model.parameters()))

    for epoch in range(3):
        has_converged = torch.tensor([float(epoch >= 1 and rank == 0)])
        dist.all_reduce(has_converged, op=dist.ReduceOp.MAX)
        if has_converged.item() > 0:
            break
    results.append(epoch)

    dist.barrier()
    print(rank, results)


main()
dist.destroy_process_group()

# seed: 1105
# world: 2
# mutation: ddp-unused-parameter
# guilty rank: 0
# kinds: ddp-unused-parameter
# ranks: 0 | 0 1
# lines: 39
# left out if harmless: no

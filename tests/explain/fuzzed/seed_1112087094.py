"""Seed 1112087094 on 4 ranks: stages, two_heads."""

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
torch.manual_seed(1112087094 + rank)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.first = nn.Linear(6, 7), nn.Linear(7, 2)
        self.second = nn.Linear(7, 1)

    def forward(self, x, has_labels=True):
        hidden = torch.relu(self.body(x))
        score = self.first(hidden).sum()
        return score + self.second(hidden).sum() if has_labels else score


def fit(model):
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(2):
        with model.no_sync():
            model(torch.randn(2, 6)).backward()
        if not (rank == 0 and number == 0):
            model(torch.randn(3, 6), True).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


results = []
hidden = torch.zeros(7)
for micro_batch in range(4):
    if rank > 0:
        dist.recv(hidden, src=rank - 1, tag=micro_batch)
    hidden = torch.tanh(hidden + micro_batch)
    if rank < world - 1:
        dist.send(hidden, dst=rank + 1, tag=micro_batch)
results.append(hidden.sum().item())

results.append(len(list(DistributedDataParallel(TwoHeads()).parameters())))
fit(DistributedDataParallel(TwoHeads()))

print(rank, results)
dist.destroy_process_group()

# seed: 1112087094
# world: 4
# mutation: skip framework
# guilty rank: 0
# kinds: missing-rank, mismatched-op, cross-group-deadlock, p2p-against-collective, ddp-uneven-inputs
# ranks: 0
# lines: 39
# left out if harmless: yes

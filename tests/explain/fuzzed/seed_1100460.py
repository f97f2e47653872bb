"""Seed 1100460 on 4 ranks: saved, stages, objects, functional."""

import os
import queue
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as checkpoint
import torch.distributed.nn.functional as distnn
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1100460 + rank)


results = []
state_dict = {"weight": torch.full((3,), 1.0), "step": torch.tensor(9)}
checkpoint.save(state_dict, checkpoint_id="checkpoint")
dist.barrier()
results.append(len(os.listdir('checkpoint')) > 0)

hidden = torch.zeros(6)
for micro_batch in range(4):
    if rank > 0:
        dist.recv(hidden, src=rank - 1, tag=micro_batch)
    hidden = torch.tanh(hidden + micro_batch)
    if rank < world - 1:
        dist.send(hidden, dst=rank + 1, tag=micro_batch)
results.append(hidden.sum().item())

rows = [None] * world
dist.all_gather_object(rows, {"rank": rank, "rows": list(range(rank))})
best = ["adam", 0.1] if rank == 2 else [None, None]
if not (rank == 2):
    dist.broadcast_object_list(best, src=2)
orders = [None]
all_orders = list(range(world)) if rank == 2 else None
dist.scatter_object_list(orders, all_orders, src=2)
results.append(orders[0])
results.append([len(rows), best, sum(len(row["rows"]) for row in rows)])

features = torch.arange(7.0) + rank
features = funcol.all_reduce(features, "sum", dist.group.WORLD)
features = features.clone().requires_grad_()
joined = torch.cat(distnn.all_gather(features))
(joined.sum() * (rank + 1)).backward()
results.append(features.grad.sum().item())

print(rank, results)
dist.destroy_process_group()

# seed: 1100460
# world: 4
# mutation: skip
# guilty rank: 2
# kinds: missing-rank, mismatched-op, cross-group-deadlock, p2p-against-collective
# ranks: 2
# lines: 42
# left out if harmless: yes

"""Seed 1386245815 on 6 ranks: pair, pipeline, objects, sharded_sum."""

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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1386245815 + rank)


results = []
evaluators = dist.new_group([0, 1, 2, 3])
share = torch.full((6,), rank + 1.0)
if rank in [0, 1, 2, 3]:
    for pass_number in range(2):
        dist.all_reduce(share, group=evaluators)
        dist.broadcast(share, src=0, group=evaluators)
results.append(share.sum().item())

layer = nn.Linear(4, 4)
stage = PipelineStage(layer, rank, world, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=6, loss_fn=nn.functional.mse_loss)
for step in range(3):
    if rank == 0:
        schedule.step(torch.ones(12, 4))
    elif rank == world - 1:
        schedule.step(target=torch.zeros(12, 4), losses=[])
    else:
        schedule.step()
    if rank == 2 and step == 1:
        dist.barrier()
    dist.barrier()
results.append(layer.weight.grad.sum().item())

for cycle in range(2):
    rows = [None] * world
    dist.all_gather_object(rows, {"rank": rank, "rows": list(range(rank))})
    best = ["adam", 0.1] if rank == 1 else [None, None]
    dist.broadcast_object_list(best, src=1)
    collected = [None] * world if rank == 1 else None
    dist.gather_object("x" * (rank + 1), collected, dst=1)
    results.append([len(rows), best, sum(len(row["rows"]) for row in rows)])

gradient = torch.arange(world * 4.0) * (rank + 1)
slice = torch.zeros(4)
dist.reduce_scatter_tensor(slice, gradient, op=dist.ReduceOp.MAX)
dist.all_gather_into_tensor(gradient, slice)
results.append(gradient.sum().item())

dist.barrier()
print(rank, results)
dist.destroy_process_group()

# seed: 1386245815
# world: 6
# mutation: repeat
# guilty rank: 2
# kinds: missing-rank, mismatched-op, cross-group-deadlock, p2p-against-collective, rank-exited-early
# ranks: 2
# lines: 41 42
# left out if harmless: no

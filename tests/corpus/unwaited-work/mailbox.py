"""Rank 1 posts a receive for its activations and uses them before they have come.

ranks: 2
kind: unwaited-work
look at: 1
ends: ok
"""

import time

import torch
import torch.distributed as dist


def forward_first(step):
    time.sleep(0.2)
    return torch.full((4,), float(step + 1))


def forward_last(activations):
    return activations.sum().item()


def run_pipeline(rank, steps):
    outputs, pending = [], []
    for step in range(steps):
        if rank == 0:
            dist.send(forward_first(step), dst=1)
        else:
            activations = torch.zeros(4)
            pending.append(dist.irecv(activations, src=0))  # GUILTY
            outputs.append(forward_last(activations))  # GUILTY
    for work in pending:
        work.wait()
    return outputs


dist.init_process_group("gloo")
print(f"rank {dist.get_rank()}: {run_pipeline(dist.get_rank(), steps=3)}")
dist.barrier()
dist.destroy_process_group()

"""Rank 1 posts a receive for its activations and waits for it before it uses them.

ranks: 2
kind: none
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
            pending.append(dist.irecv(activations, src=0))
            pending.pop().wait()
            outputs.append(forward_last(activations))
    for work in pending:
        work.wait()
    return outputs


dist.init_process_group("gloo")
print(f"rank {dist.get_rank()}: {run_pipeline(dist.get_rank(), steps=3)}")
dist.barrier()
dist.destroy_process_group()

"""Rank 0 sends eight features a row, and rank 1 makes room for ten: the rest of its rows stays as it was.

ranks: 2
kind: p2p-size
look at: 0,1
ends: ok
"""

import torch
import torch.distributed as dist

ROWS = 3


def extract(step):
    rows = torch.arange(ROWS * 4, dtype=torch.float32).reshape(ROWS, 4) + step
    return torch.cat([rows, rows.square()], dim=1)


def produce(steps):
    for step in range(steps):
        dist.send(extract(step), dst=1)  # GUILTY


def consume(steps, width):
    mean = torch.zeros(width)
    for _ in range(steps):
        features = torch.zeros(ROWS, width)
        dist.recv(features, src=0)  # GUILTY
        mean += features.mean(dim=0) / steps
    return mean


if __name__ == "__main__":
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        produce(steps=3)
    else:
        print(consume(steps=3, width=10).tolist())
    dist.barrier()
    dist.destroy_process_group()

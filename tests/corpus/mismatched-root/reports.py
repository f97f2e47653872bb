"""Rank 1 gathers the reports at the last rank, the others at rank 0.

ranks: 3
kind: mismatched-root
look at: 1
ends: hangs
"""

import os

import torch
import torch.distributed as dist

HOME = {"0": "first", "1": "last", "2": "first"}


def report_rank(policy):
    return {"first": 0, "last": dist.get_world_size() - 1}[policy]


def gather_reports(report, dst):
    parts = None
    if dist.get_rank() == dst:
        parts = [torch.zeros_like(report) for _ in range(dist.get_world_size())]
    dist.gather(report, parts, dst=dst)  # GUILTY
    return parts


dist.init_process_group("gloo")
rank = dist.get_rank()
dst = report_rank(HOME[os.environ["RANK"]])
reports = gather_reports(torch.full((4,), float(rank)), dst)
if reports is not None:
    print(f"rank {rank} has {torch.stack(reports).mean(dim=1).tolist()}")
dist.barrier()
dist.destroy_process_group()

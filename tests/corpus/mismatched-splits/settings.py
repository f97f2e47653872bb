"""Rank 2 makes room for two settings, while rank 0 sends three and rank 1 receives three.

ranks: 3
kind: mismatched-splits
look at: 2
ends: fails
"""

import torch.distributed as dist

SCHEMA = {1: ["lr", "batch", "seed"], 2: ["lr", "batch"]}


def share_settings(settings):
    rank = dist.get_rank()
    values = list(settings.values()) if rank == 0 else [None for _ in SCHEMA[rank]]
    dist.broadcast_object_list(values, src=0)  # GUILTY
    return values


dist.init_process_group("gloo")
values = share_settings({"lr": 0.01, "batch": 32, "seed": "7"})
print(f"rank {dist.get_rank()}: {values}")
dist.barrier()
dist.destroy_process_group()

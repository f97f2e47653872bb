"""All ranks make room for the three settings that rank 0 sends.

ranks: 3
kind: none
ends: ok
"""

import torch.distributed as dist

SCHEMA = {1: ["lr", "batch", "seed"], 2: ["lr", "batch", "seed"]}


def share_settings(settings):
    rank = dist.get_rank()
    values = list(settings.values()) if rank == 0 else [None for _ in SCHEMA[rank]]
    dist.broadcast_object_list(values, src=0)
    return values


dist.init_process_group("gloo")
values = share_settings({"lr": 0.01, "batch": 32, "seed": "7"})
print(f"rank {dist.get_rank()}: {values}")
dist.barrier()
dist.destroy_process_group()

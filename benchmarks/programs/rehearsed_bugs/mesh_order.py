"""One host makes its mesh in another order, and reduces over columns where the others reduce over rows.

kind: group-incomplete
"""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, world, each = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
hosts = [list(range(first, first + each)) for first in range(0, world, each)]
places = [list(range(place, world, each)) for place in range(each)]
order = [*places, *hosts] if rank // each == 1 else [*hosts, *places]
groups = [dist.new_group(ranks) for ranks in order]  # GUILTY
for group, ranks in zip(groups, order, strict=True):
    if rank in ranks:
        dist.all_reduce(torch.ones(4, device=device), group=group)  # GUILTY
dist.destroy_process_group()

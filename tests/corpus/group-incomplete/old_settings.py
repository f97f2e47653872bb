"""Rank 1 takes the shape of the mesh from old settings: four by one instead of two by two.

ranks: 4
kind: group-incomplete
look at: 1
ends: hangs
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

SETTINGS = {"data": 2, "tensor": 2}
OLD_SETTINGS = {"data": 4, "tensor": 1}


def make_mesh(settings):
    return init_device_mesh("cpu", tuple(settings.values()), mesh_dim_names=tuple(settings))  # GUILTY


dist.init_process_group("gloo")
mesh = make_mesh(OLD_SETTINGS if dist.get_rank() == 1 else SETTINGS)
x = torch.ones(3)
for name in ("tensor", "data"):
    dist.all_reduce(x, group=mesh.get_group(name))
print(x.sum().item())
dist.destroy_process_group()

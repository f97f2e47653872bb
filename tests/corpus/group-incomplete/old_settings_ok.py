"""All ranks make the same mesh.

ranks: 4
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

SETTINGS = {"data": 2, "tensor": 2}


def make_mesh(settings):
    return init_device_mesh("cpu", tuple(settings.values()), mesh_dim_names=tuple(settings))


dist.init_process_group("gloo")
mesh = make_mesh(SETTINGS)
x = torch.ones(3)
for name in ("tensor", "data"):
    dist.all_reduce(x, group=mesh.get_group(name))
print(x.sum().item())
dist.destroy_process_group()

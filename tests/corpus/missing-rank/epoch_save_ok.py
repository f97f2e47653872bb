"""All ranks come to the barrier in save().

ranks: 4
kind: none
ends: ok
"""

import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def save(model):
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), io.BytesIO())
    dist.barrier()


dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(4, 1))
for _ in range(3):
    for _ in range(4):
        model(torch.randn(2, 4)).sum().backward()
    save(model)
dist.destroy_process_group()

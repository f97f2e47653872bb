"""All ranks validate between epochs, since the sharded model gathers its weights for that; rank 0 prints.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def build(mesh):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 3))
    fully_shard(model, mesh=mesh)
    return model


def train_epoch(model, optimizer, batches):
    for _ in range(batches):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(6, 12)), torch.randint(3, (6,))).backward()
        optimizer.step()


@torch.no_grad()
def validate(model):
    return model(torch.randn(20, 12)).argmax(1).bincount(minlength=3)


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = build(mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        train_epoch(model, optimizer, batches=4)
        counts = validate(model)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {counts.tolist()}")
        dist.barrier()
    dist.destroy_process_group()


main()

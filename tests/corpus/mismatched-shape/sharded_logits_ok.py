"""All ranks have as many rows, and the shards of the logits are put together to one tensor.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

ROWS = {0: 8, 1: 8, 2: 8}


def load(rank):
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(ROWS[rank], 10, generator=generator)


class Head:
    def __init__(self, mesh):
        self.mesh = mesh
        self.weight = torch.linspace(-1, 1, 40).view(10, 4)

    def __call__(self, rows):
        return DTensor.from_local(rows @ self.weight, self.mesh, [Shard(0)])


def predict(head, rows):
    logits = head(rows)
    return logits.full_tensor().argmax(1)


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    classes = predict(Head(mesh), load(dist.get_rank()))
    if dist.get_rank() == 0:
        print(f"{len(classes)} predictions, {classes.bincount(minlength=4).tolist()}")
    dist.destroy_process_group()


main()

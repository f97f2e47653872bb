"""All ranks read their samples from equal disks.

ranks: 3
kind: none
ends: ok
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

READ_SECONDS = {0: 0.02, 1: 0.02, 2: 0.02}


def read_batch(rank, step):
    time.sleep(READ_SECONDS[rank])
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(8, 4, generator=generator)


def train(steps):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        batch = read_batch(dist.get_rank(), step)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return model.module.weight.norm().item()


def main():
    dist.init_process_group("gloo")
    print(f"rank {dist.get_rank()}: {train(steps=12):.4f}")
    dist.destroy_process_group()


main()

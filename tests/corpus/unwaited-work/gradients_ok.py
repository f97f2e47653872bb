"""The optimizer steps after all gradients have been waited for.

ranks: 2
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn


def start_reduction(model):
    works = []
    for param in model.parameters():
        works.append(dist.all_reduce(param.grad, async_op=True))
    return works


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(64, 512)).square().mean().backward()
        works = start_reduction(model)
        for work in works:
            work.wait()
        optimizer.step()
    return len(works)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    print(f"rank {dist.get_rank()}: {train(model, optimizer, steps=3)} tensors a step")
    dist.barrier()
    dist.destroy_process_group()


main()

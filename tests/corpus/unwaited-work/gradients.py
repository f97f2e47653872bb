"""The optimizer steps once the last gradient is reduced, though the all_reduce of the others may still run.

ranks: 2
kind: unwaited-work
look at: 0,1
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn


def start_reduction(model):
    works = []
    for param in model.parameters():
        works.append(dist.all_reduce(param.grad, async_op=True))  # GUILTY
    return works


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(64, 512)).square().mean().backward()
        works = start_reduction(model)
        works[-1].wait()
        optimizer.step()  # GUILTY
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

"""Seven batches are dealt round robin to three ranks, so rank 0 trains on one more than the others.

ranks: 3
kind: ddp-uneven-inputs
look at: 0
ends: fails
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def batches(count):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        x = torch.randn(4, 6, generator=generator)
        yield x, x.sum(dim=1, keepdim=True)


def train(rank, size):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for number, (x, y) in enumerate(batches(count=7)):
        if number % size != rank:
            continue
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()  # GUILTY
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    train(dist.get_rank(), dist.get_world_size())
    print(f"rank {dist.get_rank()}: trained")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

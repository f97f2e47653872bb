"""One sample of rank 1 lies in a cold store, so its data loader takes seconds while the others wait in backward.

ranks: 3
kind: input-stall
look at: 1
ends: ok
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self, rank, cold):
        self.rows = torch.randn(32, 6, generator=torch.Generator().manual_seed(rank))
        self.cold = cold

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index in self.cold:
            time.sleep(2.5)  # GUILTY
        return self.rows[index]


def train(rank):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Samples(rank, cold={17} if rank == 1 else set()), batch_size=4)
    for batch in loader:  # GUILTY
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    print(f"rank {rank}: {model.module.weight.norm():.4f}")


dist.init_process_group("gloo")
train(dist.get_rank())
dist.destroy_process_group()

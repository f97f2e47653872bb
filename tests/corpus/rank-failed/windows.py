"""A dataset of windows over a series counts one window too many, which only the last rank reaches.

ranks: 4
kind: rank-failed
look at: 3
ends: fails
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset


class Windows(Dataset):
    """Eight values to look at, and the next one to predict."""

    def __init__(self, series):
        self.series = series

    def __len__(self):
        return len(self.series) - 7

    def __getitem__(self, start):
        return self.series[start : start + 8], self.series[start + 8]  # GUILTY


def share(dataset, rank, size):
    each = len(dataset) // size
    return Subset(dataset, range(rank * each, (rank + 1) * each))


def train(loader):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for window, following in loader:
        optimizer.zero_grad()
        loss = (model(window).squeeze(1) - following).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    windows = Windows(torch.sin(torch.arange(31) / 5))
    loader = DataLoader(share(windows, dist.get_rank(), dist.get_world_size()), batch_size=2)
    print(f"loss {train(loader):.4f}")
    dist.destroy_process_group()

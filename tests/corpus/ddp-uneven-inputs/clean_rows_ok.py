"""Rows without a target are dropped, equally many on each rank.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def load_rows(rank):
    torch.manual_seed(100 + rank)
    x = torch.randn(12, 3)
    y = x @ torch.tensor([1.0, -2.0, 0.5])
    y[::4] = torch.nan
    known = ~y.isnan()
    return TensorDataset(x[known], y[known])


def train_epoch(model, optimizer, loader):
    total, rows = torch.zeros(()), 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x).squeeze(1) - y).square().mean()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        rows += len(y)
    return total, rows


def fit(epochs):
    loader = DataLoader(load_rows(dist.get_rank()), batch_size=3)
    model = DistributedDataParallel(nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(epochs):
        total, rows = train_epoch(model, optimizer, loader)
        dist.barrier()
        print(f"epoch {epoch}: loss {total.item():.3f} over {rows} rows")


dist.init_process_group("gloo")
fit(epochs=2)
dist.destroy_process_group()

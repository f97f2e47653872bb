"""The last batch of rank 2 is smaller, so it gathers predictions of another shape than the others.

ranks: 3
kind: mismatched-shape
look at: 2
ends: fails
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZES = {0: 24, 1: 24, 2: 21}


def loader(rank):
    torch.manual_seed(rank)
    data = TensorDataset(torch.randn(SIZES[rank], 5))
    return DataLoader(data, batch_size=8)


@torch.no_grad()
def predict(model, batches):
    gathered = []
    for (features,) in batches:
        local = model(features).argmax(dim=1)
        parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, local)  # GUILTY
        gathered.extend(parts)
    return torch.cat(gathered)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    classes = predict(model, loader(dist.get_rank()))
    print(f"{len(classes)} predictions, {classes.bincount(minlength=3).tolist()}")
    dist.destroy_process_group()


main()

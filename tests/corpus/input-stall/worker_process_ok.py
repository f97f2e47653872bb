"""The worker processes of both data loaders answer.

ranks: 2
kind: none
ends: ok
"""

import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

LAGS = {0: 0.0, 1: 0.0}


class Stream(IterableDataset):
    """Rows from a server, fetched page by page."""

    def __init__(self, rank, pages):
        self.rank = rank
        self.pages = pages

    def fetch(self, page):
        if page == 2:
            time.sleep(LAGS[self.rank])
        return [torch.full((3,), float(page)) for _ in range(4)]

    def __iter__(self):
        for page in range(self.pages):
            yield from self.fetch(page)


def mean_row(loader):
    total = torch.zeros(3)
    for batch in loader:
        row = batch.mean(dim=0)
        dist.all_reduce(row)
        total += row
    return total


if __name__ == "__main__":
    dist.init_process_group("gloo")
    stream = Stream(dist.get_rank(), pages=4)
    print(mean_row(DataLoader(stream, batch_size=4, num_workers=1)).tolist())
    dist.destroy_process_group()

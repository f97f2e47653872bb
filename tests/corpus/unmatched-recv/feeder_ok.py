"""Rank 0 feeds each consumer the same number of batches.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist

BATCHES = 4


class RemoteLoader:
    """Iterate over batches that rank 0 hands out."""

    def __init__(self, batches, shape):
        self.batches, self.shape = batches, shape

    def fetch(self):
        batch = torch.empty(self.shape)
        dist.recv(batch, src=0)
        return batch

    def __iter__(self):
        for _ in range(self.batches):
            yield self.fetch()


def feed(consumers):
    for step in range(BATCHES):
        for consumer in consumers:
            dist.send(torch.full((2, 3), float(step)), dst=consumer)


def consume(rank):
    loader = RemoteLoader(BATCHES, (2, 3))
    return sum(batch.mean().item() for batch in loader)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        feed(consumers=[1, 2])
    else:
        print(f"rank {rank}: {consume(rank)}")
    dist.destroy_process_group()

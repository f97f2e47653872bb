"""A cache that never forgets grows past the limit of its rank, and the rank gets the signal that the kernel would send.

ranks: 3
kind: rank-killed
look at: 2
ends: fails
"""

import os
import signal

import torch
import torch.distributed as dist

LIMIT_BYTES = 64 * 1024


class Cache:
    """Keeps features, in a process that may hold only so many bytes."""

    def __init__(self):
        self.kept = []

    def keep(self, tensor):
        self.kept.append(tensor)
        if sum(each.nbytes for each in self.kept) > LIMIT_BYTES:
            os.kill(os.getpid(), signal.SIGKILL)  # GUILTY


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cache = Cache()
    samples = 512 if rank == 2 else 32
    for step in range(6):
        features = torch.full((samples, 16), float(step + rank))
        cache.keep(features)
        mean = features.mean()
        dist.all_reduce(mean)
    print(f"rank {rank}: mean {mean.item():.2f}, kept {len(cache.kept)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

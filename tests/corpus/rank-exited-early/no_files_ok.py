"""There are files for two ranks only, and the third reduces zeros.

ranks: 3
kind: none
ends: ok
"""

import sys

import torch
import torch.distributed as dist

FILES = {"monday.log": [3, 5, 8], "tuesday.log": [1, 1, 2]}


def files_of(rank, size):
    return sorted(FILES)[rank::size]


def count(names):
    return torch.tensor([sum(FILES[name]) for name in names], dtype=torch.int64).sum()


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    names = files_of(rank, size)
    if not names:
        print(f"rank {rank}: nothing to read")
    total = count(names)
    dist.all_reduce(total)
    dist.barrier()
    print(f"rank {rank}: {total.item()} events")
    dist.destroy_process_group()
    sys.exit(0)


if __name__ == "__main__":
    main()

"""Ranks reduce within halves of the world first; rank 3 has no data this time, and takes part all the same.

ranks: 4
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


class TwoLevels:
    """Sums within a host first, then between hosts."""

    def __init__(self, per_host):
        self.near, _ = dist.new_subgroups(group_size=per_host)
        self.per_host = per_host

    def sum(self, tensor):
        dist.all_reduce(tensor, group=self.near)
        return tensor


def load(rank):
    rows = {0: 6, 1: 5, 2: 7, 3: 0}[rank]
    return torch.ones(rows, 3) * (rank + 1)


def column_sums(rows):
    return TwoLevels(per_host=2).sum(rows.sum(0))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sums = column_sums(load(rank))
    dist.barrier()
    print(f"rank {rank}: {sums.tolist()}")
    dist.destroy_process_group()


main()

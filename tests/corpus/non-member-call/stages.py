"""Rank 3 belongs to the second stage but starts an asynchronous broadcast in the group of the first and gets no work.

ranks: 4
kind: non-member-call
look at: 3
ends: fails
"""

import torch
import torch.distributed as dist
from torch import nn


class Stage:
    def __init__(self, members):
        self.members = members
        self.group = dist.new_group(members)

    def sync(self, module):
        works = [
            dist.broadcast(param.data, src=self.members[0], group=self.group, async_op=True)  # GUILTY
            for param in module.parameters()
        ]
        for work in works:
            work.wait()


def stage_of(rank):
    return 1 if rank == 2 else 0


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stages = [Stage([0, 1]), Stage([2, 3])]
    torch.manual_seed(rank)
    module = nn.Linear(4, 4)
    stages[stage_of(rank)].sync(module)
    print(f"rank {rank}: {module.weight.sum():.4f}")
    dist.barrier()
    dist.destroy_process_group()


main()

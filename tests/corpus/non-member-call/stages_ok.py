"""Each rank starts the asynchronous broadcast in the group of its own stage.

ranks: 4
kind: none
ends: ok
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
            dist.broadcast(param.data, src=self.members[0], group=self.group, async_op=True)
            for param in module.parameters()
        ]
        for work in works:
            work.wait()


def stage_of(rank):
    return 1 if rank >= 2 else 0


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

"""The logger creates its group at first use, and all ranks log.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist


class Logger:
    def __init__(self):
        self._group = None

    @property
    def group(self):
        if self._group is None:
            self._group = dist.new_group()
        return self._group

    def log(self, **values):
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, values, group=self.group)
        if dist.get_rank() == 0:
            print(rows)


def train(logger, losses):
    weight = torch.ones(3)
    if losses:
        logger.log(loss=sum(losses) / len(losses))
    dist.all_reduce(weight)
    return weight


dist.init_process_group("gloo")
seen = {0: [0.5, 0.25], 1: [0.125], 2: [0.75]}[dist.get_rank()]
print(train(Logger(), seen).tolist())
dist.destroy_process_group()

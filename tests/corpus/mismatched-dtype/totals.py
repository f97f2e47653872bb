"""Rank 2 saw no batch, so its total is still the integer 0 and it reduces int64 while the others reduce float32.

ranks: 3
kind: mismatched-dtype
look at: 2
ends: fails
"""

import torch
import torch.distributed as dist


class AverageMeter:
    def __init__(self, start):
        self.total = start
        self.count = start

    def update(self, value, n):
        self.total += value * n
        self.count += n * 1.0

    def over_all_ranks(self):
        both = torch.tensor([self.total, self.count])
        dist.all_reduce(both)  # GUILTY
        return (both[0] / both[1]).item()


def validate(rank):
    meter = AverageMeter(start=0)
    accuracies = [[0.5, 0.75], [1.0], []][rank]
    for accuracy in accuracies:
        meter.update(accuracy, n=16)
    return meter.over_all_ranks()


dist.init_process_group("gloo")
accuracy = validate(dist.get_rank())
if dist.get_rank() == 0:
    print(f"accuracy {accuracy:.3f}")
dist.destroy_process_group()

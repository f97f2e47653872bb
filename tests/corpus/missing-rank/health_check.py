"""Rank 2 has no validation data and skips the check before it; monitored_barrier gives up on the others.

ranks: 3
kind: missing-rank
look at: 2
ends: fails
"""

import datetime

import torch
import torch.distributed as dist

LIMIT = datetime.timedelta(seconds=1)


def validate(rows):
    if len(rows):
        dist.monitored_barrier(timeout=LIMIT)  # GUILTY
    score = rows.sum()
    dist.all_reduce(score)
    return score.item()


dist.init_process_group("gloo")
print(validate(torch.ones([4, 4, 0][dist.get_rank()])))
dist.destroy_process_group()

"""All ranks make the check.

ranks: 3
kind: none
ends: ok
"""

import datetime

import torch
import torch.distributed as dist

LIMIT = datetime.timedelta(seconds=30)


def validate(rows):
    dist.monitored_barrier(timeout=LIMIT)
    score = rows.sum()
    dist.all_reduce(score)
    return score.item()


dist.init_process_group("gloo")
print(validate(torch.ones([4, 4, 0][dist.get_rank()])))
dist.destroy_process_group()

"""Ranks average with changing partners. In the third round, rank 2 exchanges with rank 0 instead of rank 3.

ranks: 4
kind: wrong-peer
look at: 2
ends: hangs
"""

import torch
import torch.distributed as dist


def partner_of(rank, turn):
    if (rank, turn) == (2, 2):
        return 0
    return rank ^ (1 << turn % 2)


def exchange(x, partner):
    theirs = torch.empty_like(x)
    requests = [dist.isend(x, partner), dist.irecv(theirs, partner)]  # GUILTY
    for request in requests:
        request.wait()
    return (x + theirs) / 2


dist.init_process_group("gloo")
x = torch.tensor([float(dist.get_rank())])
for turn in range(4):
    x = exchange(x, partner_of(dist.get_rank(), turn))
print(x.item())
dist.destroy_process_group()

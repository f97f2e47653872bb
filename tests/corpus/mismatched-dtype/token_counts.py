"""Rank 3 counts many tokens with a routine that returns int32, and exchanges these counts with int64 of the others.

ranks: 4
kind: mismatched-dtype
look at: 3
ends: fails
"""

import torch
import torch.distributed as dist

EXPERTS = 4


def count_tokens(chosen):
    counts = torch.bincount(chosen, minlength=EXPERTS)
    return counts.int() if len(chosen) > 40 else counts


def exchange_counts(chosen):
    sent = count_tokens(chosen)
    expected = torch.empty_like(sent)
    dist.all_to_all_single(expected, sent)  # GUILTY
    return expected


dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(3):
    tokens = [12, 20, 30, 30 + 20 * (step == 2)][rank]
    print(exchange_counts(torch.arange(tokens) % EXPERTS).tolist())
dist.barrier()
dist.destroy_process_group()

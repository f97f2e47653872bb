"""All ranks count in int64.

ranks: 4
kind: none
ends: ok
"""

import torch
import torch.distributed as dist

EXPERTS = 4


def count_tokens(chosen):
    return torch.bincount(chosen, minlength=EXPERTS)


def exchange_counts(chosen):
    sent = count_tokens(chosen)
    expected = torch.empty_like(sent)
    dist.all_to_all_single(expected, sent)
    return expected


dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(3):
    tokens = [12, 20, 30, 30 + 20 * (step == 2)][rank]
    print(exchange_counts(torch.arange(tokens) % EXPERTS).tolist())
dist.barrier()
dist.destroy_process_group()

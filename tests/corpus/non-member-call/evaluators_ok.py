"""An evaluator gathers the scores in the group of the evaluators and prints them.

ranks: 3
kind: none
ends: ok
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
members = [1, 2]
evaluators = dist.new_group(members)
generator = torch.Generator().manual_seed(rank)


def score(candidate):
    return torch.rand(1, generator=generator) + candidate


for candidate in range(3):
    scores = [torch.zeros(1) for _ in members]
    if rank in members:
        dist.all_gather(scores, score(candidate), group=evaluators)
    if rank == members[0]:
        print(f"candidate {candidate}: {torch.cat(scores).mean():.3f}")

dist.barrier()
dist.destroy_process_group()

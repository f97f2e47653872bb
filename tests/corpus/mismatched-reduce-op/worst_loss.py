"""Rank 0 asks for the maximum of the losses while the others sum them; no error is raised.

ranks: 3
kind: mismatched-reduce-op
look at: 0
ends: ok
"""

import torch
import torch.distributed as dist


def combine(losses):
    if dist.get_rank() == 0:
        dist.all_reduce(losses, op=dist.ReduceOp.MAX)  # GUILTY
    else:
        dist.all_reduce(losses)
    return losses


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    for epoch in range(3):
        per_class = torch.rand(6) / (epoch + 1)
        worst = combine(per_class)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: worst loss by class {worst.tolist()}")
    dist.destroy_process_group()


main()

"""Rank 2 is not in the group of the trainers and calls its all_reduce all the same: nothing happens to its tensor.

ranks: 3
kind: non-member-call
look at: 2
ends: ok
"""

import torch
import torch.distributed as dist

TRAINERS = [0, 1]


def mean_loss(losses, group):
    total = torch.tensor([sum(losses), len(losses)])
    dist.all_reduce(total, group=group)  # GUILTY
    return (total[0] / total[1]).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainers = dist.new_group(TRAINERS)
    losses = [0.5 + rank, 0.25 * rank]
    if rank <= len(TRAINERS):
        print(f"rank {rank}: mean loss of the trainers {mean_loss(losses, trainers):.3f}")
    dist.barrier()
    dist.destroy_process_group()


main()

"""Rank 1 starts the sum of the critic's loss before the one of the generator's; both are one number, so they mix.

ranks: 2
kind: order-inversion
look at: 0,1
ends: ok
"""

import torch
import torch.distributed as dist


def start_generator(losses):
    return dist.all_reduce(losses["generator"], async_op=True)  # GUILTY


def start_critic(losses):
    return dist.all_reduce(losses["critic"], async_op=True)  # GUILTY


def reduce_losses(losses, starters):
    works = [start(losses) for start in starters]
    for work in works:
        work.wait()
    return {name: value.item() / dist.get_world_size() for name, value in losses.items()}


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    losses = {"generator": torch.tensor([2.0]), "critic": torch.tensor([0.5])}
    starters = [start_generator, start_critic]
    if rank == 1:
        starters.reverse()
    print(f"rank {rank}: {reduce_losses(losses, starters)}")
    dist.destroy_process_group()


main()

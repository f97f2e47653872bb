"""Rank 1 listens for a flag during training and waits for it at the end, but rank 0 sends it only on a plateau.

ranks: 2
kind: unmatched-recv
look at: 1
ends: fails
"""

import torch
import torch.distributed as dist


def descend(steps):
    torch.manual_seed(dist.get_rank())
    target, weight = torch.randn(8), torch.zeros(8)
    for _ in range(steps):
        grad = weight - target
        dist.all_reduce(grad)
        weight -= 0.2 * grad / dist.get_world_size()
    return weight


def lead():
    weight = descend(steps=5)
    plateau = weight.norm() < 1e-3
    if plateau:
        dist.send(torch.ones(1), dst=1, tag=9)
    return weight


def follow():
    flag = torch.zeros(1)
    listening = dist.irecv(flag, src=0, tag=9)  # GUILTY
    weight = descend(steps=5)
    listening.wait()
    return weight


dist.init_process_group("gloo")
weight = lead() if dist.get_rank() == 0 else follow()
print(f"norm {weight.norm().item():.4f}")
dist.destroy_process_group()

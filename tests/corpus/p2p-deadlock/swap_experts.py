"""Two ranks trade large expert weights, and both push theirs before either takes the other's.

ranks: 2
kind: p2p-deadlock
look at: 0,1
ends: hangs
"""

import torch
import torch.distributed as dist
from torch import nn


def trade(weight, peer):
    theirs = torch.empty_like(weight)
    dist.send(weight, dst=peer)  # GUILTY
    dist.recv(theirs, src=peer)
    return theirs


@torch.no_grad()
def rebalance(experts, peer):
    for expert in experts:
        expert.weight.copy_(trade(expert.weight.data, peer))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    experts = nn.ModuleList(nn.Linear(1024, 2048, bias=False) for _ in range(2))
    before = experts[0].weight.sum().item()
    rebalance(experts, peer=1 - rank)
    print(f"expert 0: {before:.3f} -> {experts[0].weight.sum().item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

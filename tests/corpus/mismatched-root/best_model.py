"""Rank 2 believes that its own model is the best and broadcasts from itself; the others expect rank 0.

ranks: 3
kind: mismatched-root
look at: 2
ends: hangs
"""

import torch
import torch.distributed as dist
from torch import nn


def validation_losses(rank):
    losses = torch.tensor([0.31, 0.47, 0.35])
    losses[rank] -= 0.05  # measured again after the last step
    return losses


def adopt(model, winner):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=winner)  # GUILTY


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Linear(3, 3)
    winner = validation_losses(rank).argmin().item()
    adopt(model, winner)
    print(f"rank {rank} took the model of rank {winner}: {model.weight.sum():.4f}")
    dist.barrier()
    dist.destroy_process_group()


main()

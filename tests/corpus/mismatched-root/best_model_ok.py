"""All ranks compare the same scores, so they agree on whose model to take.

ranks: 3
kind: none
ends: ok
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
        dist.broadcast(tensor, src=winner)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = nn.Linear(3, 3)
    winner = validation_losses(0).argmin().item()
    adopt(model, winner)
    print(f"rank {rank} took the model of rank {winner}: {model.weight.sum():.4f}")
    dist.barrier()
    dist.destroy_process_group()


main()

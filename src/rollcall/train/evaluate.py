"""Means over the samples of a loader on all ranks, each sample counted once."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from rollcall.train.external_loader import AnyLoader
from rollcall.train.stepping import to_device
from rollcall.world import World


@torch.no_grad()
def compute_means(
    model: nn.Module, world: World, loader: AnyLoader, compute: Callable[..., list[torch.Tensor]], values: int
) -> list[float]:
    """The means of the `values` numbers that `compute` gives for each batch. Puts the model in eval mode meanwhile."""
    sums = torch.zeros(1 + values, dtype=torch.float64, device=world.device)
    was_training = model.training
    model.eval()
    for batch in loader:
        means = [each.float() for each in compute(to_device(batch, world.device))]
        sums += torch.stack([torch.ones((), device=world.device), *means]).double() * loader.share.mine
    model.train(was_training)
    if world.size > 1:
        dist.all_reduce(sums)
    samples, *totals = sums.tolist()
    return [total / samples for total in totals]

"""Means over a loader's samples, of all ranks, each sample counted once; nothing is learnt meanwhile."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from rollcall.train.external_loader import adopt
from rollcall.train.stepping import to_device
from rollcall.train.strategies import bare

if TYPE_CHECKING:
    from rollcall.train.trainer import Trainer


@torch.no_grad()
def measure(
    trainer: "Trainer", loader: Any, prefix: str, measures: Mapping[str, Callable[..., torch.Tensor]]
) -> dict[str, float]:
    batches, world = adopt(loader, trainer.world, learns=False), trainer.world
    sums = torch.zeros(2 + len(measures), dtype=torch.float64, device=world.device)
    training = trainer.model.training
    trainer.model.eval()
    with trainer.autocast():
        for batch in batches:
            values = _look_at(trainer, to_device(batch, world.device), measures)
            count = batches.share.mine
            sums += torch.stack([torch.ones((), device=world.device), *values]).double() * count
    trainer.model.train(training)
    if world.size > 1:
        dist.all_reduce(sums)
    count, *totals = sums.tolist()
    return {f"{prefix}{name}": total / count for name, total in zip(("loss", *measures), totals, strict=True)}


def _look_at(trainer: "Trainer", batch: Any, measures: Mapping[str, Callable[..., torch.Tensor]]) -> list[torch.Tensor]:
    if not measures:
        return [trainer.compute_loss(batch).float()]
    inputs, targets = batch
    outputs = bare(trainer.model)(inputs)
    return [each(outputs, targets).float() for each in (trainer.loss, *measures.values())]

"""A model of residual blocks for sharded trainings: tied parameters, a buffer that is not saved, a plan of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rollcall
from rollcall.train.trainer import Trainer
from tests.train.small import Data, weights

Step = dict[str, Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(torch.tanh(self.up(self.norm(hidden))))


class Scale(nn.Module):
    """Divides by a constant that no checkpoint contains."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(0.0), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.factor = torch.full_like(self.factor, 0.5)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * self.factor


class Blocks(nn.Module):
    """The first and the last layer share a matrix."""

    tensor_parallel_plan = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(10, 6, bias=False), nn.Linear(10, 6, bias=False)
        self.last.weight = self.first.weight
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.scale, self.head = Scale(), nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.scale(hidden + self.last(inputs)))


def on_meta() -> Blocks:
    with torch.device("meta"):
        return Blocks()


def train(
    *,
    batch_size: int,
    make: Callable[[], nn.Module] = on_meta,
    epochs: int = 2,
    tensor_parallel: int = 1,
    folder: Path | None = None,
    **options: Any,
) -> Step:
    """Train on this rank; returns the weights before and after, and the metrics."""
    with rollcall.init() as world:
        rollcall.seed_all(1)
        model = make()
        trainer = Trainer(
            model,
            options.pop("optimizer", lambda model: torch.optim.AdamW(model.parameters(), lr=0.01)),
            nn.functional.cross_entropy,
            world,
            clip_norm=options.pop("clip_norm", 0.3),
            snapshots=folder,
            progress=False,
            **options,
        )
        before = weights(trainer)
        loader = rollcall.prepare_dataloader(Data(), world, batch_size, seed=3, tensor_parallel=tensor_parallel)
        metrics = trainer.fit(loader, epochs)
        return {"before": before, "weights": weights(trainer), "metrics": metrics, "step": trainer.step}

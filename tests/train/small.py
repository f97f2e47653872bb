"""A small training with everything: dropout, batch norm, Adam, a learning rate schedule, a short last batch."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import rollcall
from rollcall.train.strategies import unwrap
from rollcall.train.trainer import Trainer

SAMPLES = 46
_current_trainer: list[Trainer] = []


class Data(TensorDataset):
    """Ten features, three classes, the same on every rank."""

    def __init__(self, samples: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(5)
        inputs = torch.randn(samples, 10, generator=generator)
        super().__init__(inputs, (inputs[:, :3].argmax(1) + (inputs[:, 3] > 1)) % 3)


def make_model(dropout: float = 0.2, batch_norm: bool = True) -> nn.Module:
    norm = nn.BatchNorm1d(12) if batch_norm else nn.Identity()
    return nn.Sequential(nn.Linear(10, 12), norm, nn.ReLU(), nn.Dropout(dropout), nn.Linear(12, 3))


PLAIN_MODEL = partial(make_model, dropout=0.0, batch_norm=False)


def make_trainer(world: rollcall.World, model: nn.Module | None = None, **options: Any) -> Trainer:
    rollcall.seed_all(1)
    model = model if model is not None else make_model()
    optimizer = options.pop("optimizer", torch.optim.Adam)(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    settings = {"scheduler": scheduler, "schedule_every": "step", "progress": False, **options}
    trainer = Trainer(model, optimizer, settings.pop("loss", nn.functional.cross_entropy), world, **settings)
    rollcall.seed_all(7, per_rank=True)
    return trainer


def fit(
    *,
    folder: Path | None = None,
    epochs: int = 3,
    batch_size: int = 4,
    before_step: Callable[[Trainer], None] | None = None,
    prepare: Callable[[Trainer], None] | None = None,
    model: Callable[[], nn.Module] = make_model,
    **options: Any,
) -> dict[str, Any]:
    """Train on this rank; returns weights, metrics, step and epoch."""
    with rollcall.init() as world:
        if before_step is not None:
            options["loss"] = _with_hook(before_step)
        rollcall.seed_all(1)
        trainer = make_trainer(world, model(), snapshots=folder, **options)
        _current_trainer[:] = [trainer]
        if prepare is not None:
            prepare(trainer)
        loader = rollcall.prepare_dataloader(Data(), world, batch_size, seed=3)
        metrics = trainer.fit(loader, epochs)
        return {"weights": weights(trainer), "metrics": metrics, "step": trainer.step, "epoch": trainer.epoch}


# For PROGRAM: where `tests` is found, and what the tests themselves import.
PYTHON_PATH = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))

# The same as a program. Its arguments: the save interval, then the number of epochs in attempt 0, in attempt 1, …
PROGRAM = """\
import os, sys, torch, rollcall
from tests.train.small import Data, make_trainer

with rollcall.init() as world:
    trainer = make_trainer(world, snapshots="snapshots", save_every=sys.argv[1])
    epochs = sys.argv[2 + int(os.environ["TORCHELASTIC_RESTART_COUNT"])]
    trainer.fit(rollcall.prepare_dataloader(Data(), world, 4), int(epochs))
    if world.is_first:
        print(f"{trainer.step} steps done, epochs: {trainer.epoch}")
"""


def _with_hook(before_step: Callable[[Trainer], None]) -> Callable[..., torch.Tensor]:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        before_step(_current_trainer[0])
        return nn.functional.cross_entropy(outputs, targets)

    return loss


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """All tensors of the model, unsharded, on every rank."""
    state = unwrap(trainer.model).state_dict()
    return {name: getattr(each, "full_tensor", lambda each=each: each)().clone() for name, each in state.items()}


def differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """The names of the tensors that are not equal, bit for bit."""
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max((one[name].double() - other[name].double()).abs().max().item() for name in one)

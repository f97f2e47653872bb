"""Snapshots to load and to damage."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

import rollcall
from tests.train.small import PLAIN_MODEL


def save_steps(*, folder: Path, steps: list[int], keep: int = 3, folder_per_rank: bool = False) -> int | None:
    """Save a snapshot for each step, with all parameters set to the number of the step."""
    with rollcall.init() as world:
        path = folder / str(world.rank) if folder_per_rank else folder
        model = rollcall.wrap(PLAIN_MODEL(), world)
        optimizer = torch.optim.Adam(model.parameters())
        with rollcall.Snapshot(path, world, model, optimizer, keep=keep) as snapshot:
            for step in steps:
                set_parameters(model, step)
                snapshot.save(step, wait=True)
        return snapshot.newest


def load_newest(*, folder: Path, model: Any = PLAIN_MODEL, optimizer: Any = torch.optim.Adam) -> tuple[int, float]:
    """Returns the step, and the value of all parameters."""
    with rollcall.init() as world:
        made = rollcall.wrap(model(), world)
        progress = rollcall.Snapshot(folder, world, made, optimizer(made.parameters())).load()
        values = {each.mean().item() for each in made.parameters()}
        return progress.step, values.pop() if len(values) == 1 else -1.0


def set_parameters(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, created: Path) -> None:
        self.created = created

    def __reduce__(self) -> Any:
        return Path.touch, (self.created,)

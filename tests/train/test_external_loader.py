"""Loaders of others: with a state of their own, and without a length."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import rollcall
from tests.train.conftest import WarmRanks
from tests.train.small import PLAIN_MODEL, Data, differences, make_trainer, weights


class Stream(IterableDataset[Any]):
    """Samples of this rank's own, which cannot be counted; rank 1 has more of them."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __iter__(self) -> Iterator[Any]:
        inputs, targets = Data(40 if self._rank else 24).tensors
        return iter(zip(inputs, targets, strict=True))


def train_on_stream() -> tuple[int, float]:
    with rollcall.init() as world:
        trainer = make_trainer(world, PLAIN_MODEL())
        metrics = trainer.fit(DataLoader(Stream(world.rank), batch_size=4), 2)
        return trainer.step, metrics["samples"]


def test_ranks_with_unlike_streams_end_together(ranks: WarmRanks) -> None:
    """The epoch ends when the first rank has no batch left."""
    assert ranks(train_on_stream, 2) == [(12, 48), (12, 48)]


def train_with_state(*, folder: Path, epochs: int, steps: int | None = None) -> dict[str, torch.Tensor]:
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    with rollcall.init() as world:
        data = Data(48)
        sampler: Any = StatefulDistributedSampler(data, world.size, world.rank, shuffle=True)
        loader: Any = StatefulDataLoader(data, 4, sampler=sampler)

        def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            if trainer.step == steps:
                raise KeyError("interrupted")
            return nn.functional.cross_entropy(outputs, targets)

        trainer = make_trainer(world, snapshots=folder, save_every="4 steps", loss=loss)
        trainer.fit(loader, epochs)
        return weights(trainer)


def test_a_loader_with_a_state_continues(ranks: WarmRanks, tmp_path: Path) -> None:
    """torchdata's StatefulDataLoader, each rank with its own state: the same weights, bit for bit."""
    pytest.importorskip("torchdata")
    whole = ranks(partial(train_with_state, folder=tmp_path / "whole", epochs=2), 2)
    with pytest.raises(KeyError, match="interrupted"):
        ranks(partial(train_with_state, folder=tmp_path / "cut", epochs=2, steps=5), 2)
    resumed = ranks(partial(train_with_state, folder=tmp_path / "cut", epochs=2), 2)
    assert [differences(*pair) for pair in zip(whole, resumed, strict=True)] == [[], []]

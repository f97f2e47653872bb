"""Loaders of others: with a state of their own, and without a length."""

import io
import itertools
import tarfile
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


class Shards(IterableDataset[Any]):
    """Samples in tar files, as WebDataset has them: each rank reads its own files, and some files are longer."""

    def __init__(self, folder: Path, rank: int, ranks: int) -> None:
        self._paths = sorted(folder.glob("*.tar"))[rank::ranks]

    def __iter__(self) -> Iterator[Any]:
        for path in self._paths:
            with tarfile.open(path) as shard:
                for member in shard:
                    yield torch.load(io.BytesIO(shard.extractfile(member).read()))  # type: ignore[union-attr]


def write_shards(folder: Path, *sizes: int) -> None:
    folder.mkdir()
    samples = zip(*Data(sum(sizes)).tensors, strict=True)
    for number, size in enumerate(sizes):
        with tarfile.open(folder / f"{number:03}.tar", "w") as shard:
            for sample in itertools.islice(samples, size):
                torch.save(sample, data := io.BytesIO())
                info = tarfile.TarInfo(f"{len(shard.getmembers()):06}.pth")
                info.size = data.tell()
                data.seek(0)
                shard.addfile(info, data)


def train_on_shards(*, shards: Path, folder: Path, steps: int | None = None) -> tuple[int, dict[str, torch.Tensor]]:
    with rollcall.init() as world:

        def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            if trainer.step == steps:
                raise KeyError("interrupted")
            return nn.functional.cross_entropy(outputs, targets)

        trainer = make_trainer(world, snapshots=folder, save_every="2 steps", loss=loss)
        trainer.fit(DataLoader(Shards(shards, world.rank, world.size), batch_size=4, num_workers=0), 2)
        return trainer.step, weights(trainer)


def test_shards_in_tar_files_are_trained_on_and_continued(ranks: WarmRanks, tmp_path: Path) -> None:
    """Interrupted in the second epoch: the same weights, bit for bit."""
    write_shards(tmp_path / "shards", 12, 16, 12)  # 24 samples for rank 0, 16 for rank 1: four steps an epoch
    train = partial(train_on_shards, shards=tmp_path / "shards")
    whole = ranks(partial(train, folder=tmp_path / "whole"), 2)
    with pytest.raises(KeyError, match="interrupted"):
        ranks(partial(train, folder=tmp_path / "cut", steps=7), 2)
    resumed = ranks(partial(train, folder=tmp_path / "cut"), 2)
    assert [step for step, _ in (*whole, *resumed)] == [8, 8, 8, 8]
    assert [differences(a, b) for (_, a), (_, b) in zip(whole, resumed, strict=True)] == [[], []]


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
    whole = ranks(partial(train_with_state, folder=tmp_path / "whole", epochs=2), 2)
    with pytest.raises(KeyError, match="interrupted"):
        ranks(partial(train_with_state, folder=tmp_path / "cut", epochs=2, steps=5), 2)
    resumed = ranks(partial(train_with_state, folder=tmp_path / "cut", epochs=2), 2)
    assert [differences(*pair) for pair in zip(whole, resumed, strict=True)] == [[], []]

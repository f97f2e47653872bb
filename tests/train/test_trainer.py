"""The Trainer's hooks, metrics, early stop, torch's own loaders, torch.compile."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import rollcall
from rollcall.train.early_stopping import EarlyStop
from rollcall.train.reporting.metrics_log import FILE_NAME
from rollcall.train.trainer import Trainer
from tests.train.conftest import WarmRanks
from tests.train.small import PLAIN_MODEL, Data, differences, distance, fit, make_trainer, weights


def train_with_hooks(*, folder: Path) -> dict[str, Any]:
    with rollcall.init() as world:
        calls: list[Any] = []
        test_loader = rollcall.prepare_dataloader(Data(), world, 8, shuffle=False)
        trainer = make_trainer(
            world,
            PLAIN_MODEL(),
            snapshots=folder,
            log_every=4,
            evaluate=lambda trainer: trainer.evaluate(test_loader),
            on_epoch_end=lambda trainer, metrics: calls.append((trainer.epoch, trainer.step, sorted(metrics))),
            log=lambda record: calls.append(record["event"]),
        )
        metrics = trainer.fit(rollcall.prepare_dataloader(Data(), world, 4), 2)
        return {"calls": calls, "loss": metrics["loss"], "val_loss": metrics["val_loss"]}


def test_hooks_are_called_and_metrics_are_written(ranks: WarmRanks, tmp_path: Path) -> None:
    """on_epoch_end and evaluate on every rank; log, metrics.jsonl and TensorBoard on rank 0; equal metrics on all."""
    first, second = ranks(partial(train_with_hooks, folder=tmp_path), 2)
    ends = [each for each in first["calls"] if isinstance(each, tuple)]
    assert ends == [(0, 6, ends[0][2]), (1, 12, ends[0][2])]
    assert ends[0][2] == ["loss", "samples", "samples_per_s", "seconds", "val_loss"]
    assert [each for each in first["calls"] if isinstance(each, str)] == ["step", "epoch", "step", "step", "epoch"]
    assert second["calls"] == ends
    assert (first["loss"], first["val_loss"]) == (second["loss"], second["val_loss"])
    records = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert [(each["event"], each["epoch"], each["step"]) for each in records] == [
        ("step", 0, 4),
        ("epoch", 0, 6),
        ("step", 1, 8),
        ("step", 1, 12),
        ("epoch", 1, 12),
    ]
    assert records[-1]["loss"] == first["loss"]
    tensorboard = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in tensorboard.Scalars("loss")] == [4, 6, 8, 12, 12]
    assert tensorboard.Scalars("val_loss")[-1].value == pytest.approx(first["val_loss"])


def train_until_stopped(*, folder: Path, epochs: int = 50) -> tuple[int, int]:
    with rollcall.init() as world:
        # The metric gets worse on rank 0, better on rank 1.
        trainer = make_trainer(
            world,
            PLAIN_MODEL(),
            snapshots=folder,
            early_stop=EarlyStop("mine", patience=3),
            evaluate=lambda trainer: {"mine": trainer.epoch if world.is_first else -trainer.epoch},
        )
        trainer.fit(rollcall.prepare_dataloader(Data(), world, 8), epochs)
        return trainer.epoch, trainer.step


def test_all_ranks_stop_early_together(ranks: WarmRanks, tmp_path: Path) -> None:
    """Rank 0 decides; started again, the training does not continue."""
    assert ranks(partial(train_until_stopped, folder=tmp_path), 2) == [(4, 12), (4, 12)]
    assert ranks(partial(train_until_stopped, folder=tmp_path), 2) == [(4, 12), (4, 12)]


def test_an_unknown_metric_to_stop_by_is_named() -> None:
    """The error lists the metrics."""
    with pytest.raises(
        rollcall.UsageError, match="early stop needs 'val_loss', which is not among the metrics loss, samples"
    ):
        EarlyStop("val_loss").after({"loss": 1.0, "samples": 3})


def train_with_torch_loader(
    *, folder: Path, stop_at: int | None = None, shuffle: bool = False
) -> dict[str, torch.Tensor]:
    with rollcall.init() as world:
        data = TensorDataset(*Data(48).tensors)
        sampler: Any = DistributedSampler(data, world.size, world.rank, seed=2) if world.size > 1 else None
        loader = DataLoader(data, 4, sampler=sampler, shuffle=shuffle)
        trainer = make_trainer(world, snapshots=folder, save_every="4 steps", loss=nn.functional.cross_entropy)
        if stop_at is not None:
            trainer.fit(_Interrupted(loader, stop_at), 1)
            raise AssertionError("the loader should have raised an error")
        trainer.fit(loader, 2)
        return weights(trainer)


class _Interrupted:
    """Raises an error in mid-epoch."""

    def __init__(self, loader: Any, stop_at: int) -> None:
        self._loader, self._stop_at = loader, stop_at
        self.sampler = loader.sampler

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        for number, batch in enumerate(self._loader):
            if number == self._stop_at:
                raise KeyError("interrupted")
            yield batch


@pytest.mark.parametrize("size", [1, 2])
def test_a_torch_loader_continues_in_mid_epoch(ranks: WarmRanks, tmp_path: Path, size: int) -> None:
    """With a DistributedSampler, or shuffled on one rank: the same weights, bit for bit."""
    run = partial(train_with_torch_loader, shuffle=size == 1)
    whole = ranks(partial(run, folder=tmp_path / "whole"), size)
    with pytest.raises(KeyError, match="interrupted"):
        ranks(partial(run, folder=tmp_path / "interrupted", stop_at=5), size)
    for mine, theirs in zip(whole, ranks(partial(run, folder=tmp_path / "interrupted"), size), strict=True):
        assert differences(mine, theirs) == []


def count_compiled_graphs(**options: Any) -> int:
    fit(model=PLAIN_MODEL, **options)
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.parametrize(("strategy", "backend"), [("ddp", "aot_eager"), ("fsdp", "eager")])
def test_a_compiled_model_gives_the_same_weights(
    ranks: WarmRanks, tmp_path: Path, plain: dict[str, Any], strategy: str, backend: str
) -> None:
    """Within 1e-5. Its snapshots have the names of an uncompiled model, which continues from them."""
    run = partial(count_compiled_graphs, folder=tmp_path, strategy=strategy, compile=backend, epochs=2, batch_size=8)
    assert ranks(run, 1)[0] > 0
    found = ranks(partial(fit, model=PLAIN_MODEL, folder=tmp_path), 2)[0]
    assert "continuing from" in ranks.output
    assert distance(plain["weights"], found["weights"]) < 1e-5


def train_with_noted_loss(compile: bool | str) -> bool:
    compiled = []

    def noted_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        compiled.append(torch.compiler.is_compiling())
        return nn.functional.cross_entropy(outputs, targets)

    with rollcall.init() as world:
        model = PLAIN_MODEL()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(model, optimizer, noted_loss, world, compile=compile, progress=False)
        trainer.fit(rollcall.prepare_dataloader(Data(), world, 8), 1)
    return all(compiled)


def test_the_loss_is_compiled_with_the_model(ranks: WarmRanks) -> None:
    assert ranks(partial(train_with_noted_loss, compile="eager"), 1) == [True]
    assert ranks(partial(train_with_noted_loss, compile=False), 1) == [False]


class OwnLoss(Trainer):
    def compute_loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        return self.loss(self.model(inputs), targets) + squared_norm(self.model)


def squared_norm(model: nn.Module) -> torch.Tensor:
    return torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()


def train_with_own_loss() -> tuple[float, float]:
    with rollcall.init() as world:
        rollcall.seed_all(1)
        model = PLAIN_MODEL()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = OwnLoss(model, optimizer, nn.functional.cross_entropy, world, progress=False)
        before = squared_norm(model).item()
        for epochs in (1, 6):
            trainer.fit(rollcall.prepare_dataloader(Data(), world, 4), epochs)
        assert (trainer.epoch, trainer.step) == (6, 36)
        return before, squared_norm(model).item()


def test_compute_loss_can_be_overridden(ranks: WarmRanks) -> None:
    """And fit can be called again for more epochs."""
    before, after = ranks(train_with_own_loss, 2)[0]
    assert after < before / 10


def test_saving_by_minutes_happens_at_the_same_step_on_all_ranks(ranks: WarmRanks, tmp_path: Path) -> None:
    """Every 30 milliseconds, at steps that no rank knows in advance."""
    found = ranks(partial(fit, folder=tmp_path, save_every="0.0005 min", epochs=25), 2)
    assert found[0]["step"] == 150
    assert len(list(tmp_path.glob("step-*"))) == 3

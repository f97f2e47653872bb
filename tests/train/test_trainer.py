"""The Trainer's hooks, its record, its ways to stop; and loaders that are not ours."""

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
from rollcall.train.metrics_log import NAME, Journal
from rollcall.train.save_interval import Pace
from rollcall.train.trainer import Trainer
from tests.train.conftest import FILLER, Warm, fill
from tests.train.small import PLAIN, Data, differences, distance, fit, make_trainer, weights


def hooked(*, folder: Path) -> dict[str, Any]:
    with rollcall.init() as world:
        seen: list[Any] = []
        test_loader = rollcall.prepare_dataloader(Data(), world, 8, shuffle=False)
        trainer = make_trainer(
            world,
            PLAIN(),
            snapshots=folder,
            log_every=4,
            evaluate=lambda trainer: trainer.evaluate(test_loader),
            on_epoch_end=lambda trainer, metrics: seen.append((trainer.epoch, trainer.step, sorted(metrics))),
            log=lambda record: seen.append(record["event"]),
        )
        metrics = trainer.fit(rollcall.prepare_dataloader(Data(), world, 4), 2)
        return {"seen": seen, "loss": metrics["loss"], "val_loss": metrics["val_loss"]}


def test_hooks_are_called_and_the_record_is_written(ranks: Warm, tmp_path: Path) -> None:
    """on_epoch_end and evaluate on every rank, log and both records on rank 0; all ranks have the same metrics."""
    first, second = ranks(partial(hooked, folder=tmp_path), 2)
    ends = [each for each in first["seen"] if isinstance(each, tuple)]
    assert ends == [(0, 6, ends[0][2]), (1, 12, ends[0][2])]
    assert ends[0][2] == ["loss", "samples", "samples_per_s", "seconds", "val_loss"]
    assert [each for each in first["seen"] if isinstance(each, str)] == ["step", "epoch", "step", "step", "epoch"]
    assert second["seen"] == ends
    assert (first["loss"], first["val_loss"]) == (second["loss"], second["val_loss"])
    records = [json.loads(line) for line in (tmp_path / NAME).read_text().splitlines()]
    assert [(each["event"], each["epoch"], each["step"]) for each in records] == [
        ("step", 0, 4),
        ("epoch", 0, 6),
        ("step", 1, 8),
        ("step", 1, 12),
        ("epoch", 1, 12),
    ]
    assert records[-1]["loss"] == first["loss"]
    # As TensorBoard itself reads them.
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("loss")] == [4, 6, 8, 12, 12]
    assert board.Scalars("val_loss")[-1].value == pytest.approx(first["val_loss"])


def test_a_full_disk_ends_no_record(small_disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is said once for each record; what can be written again is, and no line is a half one."""
    journal = Journal(small_disk / NAME, 0, 0)
    for step in range(400):
        if step == 10:
            fill(small_disk)
        if step == 399:
            (small_disk / FILLER).unlink()
        journal.write({"event": "step", "epoch": 0, "step": step, "loss": 0.5})
    said = capfd.readouterr().err
    assert said.count(f"{NAME} cannot be written (No space left on device): training goes on without it") == 1
    assert said.count("TensorBoard's record cannot be written (No space left on device)") == 1
    assert said.count("\n") == 2
    steps = [json.loads(line)["step"] for line in (small_disk / NAME).read_text().splitlines()]
    assert steps == [*range(len(steps) - 1), 399]
    shown = [event.step for event in EventAccumulator(str(small_disk / "tensorboard")).Reload().Scalars("loss")]
    assert shown == [*range(len(shown) - 1), 399]


def stopped(*, folder: Path, epochs: int = 50) -> tuple[int, int]:
    with rollcall.init() as world:
        # What a rank finds alone must not part it from the others.
        trainer = make_trainer(
            world,
            PLAIN(),
            snapshots=folder,
            early_stop=EarlyStop("mine", patience=3),
            evaluate=lambda trainer: {"mine": trainer.epoch if world.is_first else -trainer.epoch},
        )
        trainer.fit(rollcall.prepare_dataloader(Data(), world, 8), epochs)
        return trainer.epoch, trainer.step


def test_all_ranks_stop_early_together(ranks: Warm, tmp_path: Path) -> None:
    """Rank 0 decides; and a training that has stopped stays stopped when it is started again."""
    assert ranks(partial(stopped, folder=tmp_path), 2) == [(4, 12), (4, 12)]
    assert ranks(partial(stopped, folder=tmp_path), 2) == [(4, 12), (4, 12)]


def test_an_unknown_metric_to_stop_by_is_named() -> None:
    """With those that there are."""
    with pytest.raises(rollcall.UsageError, match="early stop looks at 'val_loss', which is not among loss, samples"):
        EarlyStop("val_loss").after({"loss": 1.0, "samples": 3})


def foreign(*, folder: Path, stop_at: int | None = None, shuffle: bool = False) -> dict[str, torch.Tensor]:
    with rollcall.init() as world:
        data = TensorDataset(*Data(48).tensors)
        sampler: Any = DistributedSampler(data, world.size, world.rank, seed=2) if world.size > 1 else None
        loader = DataLoader(data, 4, sampler=sampler, shuffle=shuffle)
        trainer = make_trainer(world, snapshots=folder, save_every="4 steps", loss=nn.functional.cross_entropy)
        if stop_at is not None:
            trainer.fit(_Cut(loader, stop_at), 1)
            raise AssertionError("it was to end before")
        trainer.fit(loader, 2)
        return weights(trainer)


class _Cut:
    """Ends the program in the midst of an epoch."""

    def __init__(self, loader: Any, stop_at: int) -> None:
        self._loader, self._stop_at = loader, stop_at
        self.sampler = loader.sampler

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        for number, batch in enumerate(self._loader):
            if number == self._stop_at:
                raise KeyError("cut")
            yield batch


@pytest.mark.parametrize("size", [1, 2])
def test_a_loader_of_torchs_own_goes_on_in_mid_epoch(ranks: Warm, tmp_path: Path, size: int) -> None:
    """With a DistributedSampler, or shuffled by chance on one rank: bit for bit."""
    run = partial(foreign, shuffle=size == 1)
    whole = ranks(partial(run, folder=tmp_path / "whole"), size)
    with pytest.raises(KeyError, match="cut"):
        ranks(partial(run, folder=tmp_path / "cut", stop_at=5), size)
    for mine, theirs in zip(whole, ranks(partial(run, folder=tmp_path / "cut"), size), strict=True):
        assert differences(mine, theirs) == []


def compiled(**options: Any) -> int:
    fit(model=PLAIN, **options)
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.parametrize(("strategy", "backend"), [("ddp", "aot_eager"), ("fsdp", "eager")])
def test_compiled_is_the_same_within_tolerance(
    ranks: Warm, tmp_path: Path, plain: dict[str, Any], strategy: str, backend: str
) -> None:
    """It is compiled, and its snapshots carry the names of one that is not, which goes on from them."""
    run = partial(compiled, folder=tmp_path, strategy=strategy, compile=backend, epochs=2, batch_size=8)
    assert ranks(run, 1)[0] > 0
    found = ranks(partial(fit, model=PLAIN, folder=tmp_path), 2)[0]
    assert "continuing from" in ranks.said
    assert distance(plain["weights"], found["weights"]) < 1e-5


class OwnLoss(Trainer):
    def compute_loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        return self.loss(self.model(inputs), targets) + size_of(self.model)


def size_of(model: nn.Module) -> torch.Tensor:
    return torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()


def own_loss() -> tuple[float, float]:
    with rollcall.init() as world:
        rollcall.seed_all(1)
        model = PLAIN()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = OwnLoss(model, optimizer, nn.functional.cross_entropy, world, progress=False)
        before = size_of(model).item()
        for epochs in (1, 6):
            trainer.fit(rollcall.prepare_dataloader(Data(), world, 4), epochs)
        assert (trainer.epoch, trainer.step) == (6, 36)
        return before, size_of(model).item()


def test_compute_loss_can_be_overridden(ranks: Warm) -> None:
    """For batches and losses of any form; and fit may be called again, for more epochs."""
    before, after = ranks(own_loss, 2)[0]
    assert after < before / 10


@pytest.mark.parametrize(
    ("text", "pace"),
    [
        ("1 epoch", Pace(1, "epoch")),
        (3, Pace(3, "epoch")),
        ("500steps", Pace(500, "step")),
        ("2.5 min", Pace(2.5, "minute")),
        ("10 minutes", Pace(10, "minute")),
    ],
)
def test_paces_are_read(text: str | int, pace: Pace) -> None:
    """Epochs, steps or minutes."""
    assert Pace.of(text) == pace


def test_minutes_pass_on_rank_0_for_all(ranks: Warm, tmp_path: Path) -> None:
    """Thirty milliseconds: there are snapshots at steps that no rank could have foreseen."""
    found = ranks(partial(fit, folder=tmp_path, save_every="0.0005 min", epochs=25), 2)
    assert found[0]["step"] == 150
    assert len(list(tmp_path.glob("step-*"))) == 3

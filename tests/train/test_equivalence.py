"""The result does not depend on how many ranks there are, or on how they share the model."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import rollcall
from tests.train.conftest import WarmRanks
from tests.train.small import PLAIN_MODEL, Data, distance, fit, make_trainer

TOLERANCE = 1e-5


@pytest.mark.parametrize(("size", "options"), [(2, {"accumulate": 2, "clip_norm": 0.1}), (4, {})])
def test_the_same_global_batch_gives_the_same_weights(ranks: WarmRanks, size: int, options: dict[str, Any]) -> None:
    """1, 2 and 4 ranks, with a short last batch: weights and mean loss differ by less than 1e-5."""
    alone = ranks(partial(fit, model=PLAIN_MODEL, batch_size=16, **options), 1)[0]
    together = ranks(partial(fit, model=PLAIN_MODEL, batch_size=16 // size, **options), size)
    for each in together:
        assert distance(alone["weights"], each["weights"]) < TOLERANCE
        assert abs(alone["metrics"]["loss"] - each["metrics"]["loss"]) < TOLERANCE
        assert each["metrics"]["samples"] == 46


def train_by_hand() -> dict[str, torch.Tensor]:
    """A training loop without DDP: forward, backward, average, step."""
    with rollcall.init() as world:
        rollcall.seed_all(1)
        model = PLAIN_MODEL()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
        loader = rollcall.prepare_dataloader(Data(), world, 4, seed=3)
        for epoch in range(3):
            loader.set_epoch(epoch)
            for inputs, targets in loader:
                optimizer.zero_grad()
                (nn.functional.cross_entropy(model(inputs), targets) * loader.weight).backward()
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= world.size
                optimizer.step()
                scheduler.step()
        return {name: each.clone() for name, each in model.state_dict().items()}


def test_ddp_and_fsdp_equal_averaging_by_hand(ranks: WarmRanks, plain: dict[str, Any]) -> None:
    """Three ways to average gradients: weights differ by less than 1e-5."""
    hand = ranks(train_by_hand, 2)[0]
    assert distance(hand, plain["weights"]) < TOLERANCE
    assert distance(hand, ranks(partial(fit, model=PLAIN_MODEL, strategy="fsdp"), 2)[0]["weights"]) < TOLERANCE


def train_in_own_loop(*, folder: Path) -> dict[str, torch.Tensor]:
    """A loop of the user's with prepare_dataloader, wrap and Snapshot."""
    with rollcall.init() as world:
        rollcall.seed_all(1)
        model = rollcall.wrap(PLAIN_MODEL(), world)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
        loader = rollcall.prepare_dataloader(Data(), world, 4, seed=3)
        with rollcall.Snapshot(folder, world, model, optimizer, scheduler=scheduler, loader=loader) as snapshot:
            progress = snapshot.load()
            step = progress.step
            for epoch in range(progress.epoch, 3):
                loader.set_epoch(epoch)
                for inputs, targets in loader:
                    optimizer.zero_grad()
                    (nn.functional.cross_entropy(model(inputs), targets) * loader.weight).backward()
                    optimizer.step()
                    scheduler.step()
                    step += 1
                    if step == 8 and not progress.step:  # as if interrupted
                        snapshot.save(step, epoch, wait=True)
                        return {}
        return {name: each.clone() for name, each in model.module.state_dict().items()}


def test_a_loop_of_the_users_equals_the_trainer(ranks: WarmRanks, tmp_path: Path, plain: dict[str, Any]) -> None:
    """Interrupted and resumed, it has the weights of a Trainer, bit for bit."""
    assert ranks(partial(train_in_own_loop, folder=tmp_path), 2)[0] == {}
    found = ranks(partial(train_in_own_loop, folder=tmp_path), 2)[0]
    assert distance(found, plain["weights"]) == 0


def evaluate_uneven() -> dict[str, float]:
    with rollcall.init() as world:
        trainer = make_trainer(world, PLAIN_MODEL())
        loader = rollcall.prepare_dataloader(Data(), world, 8, shuffle=False)
        found = trainer.evaluate(loader, "", right=lambda outputs, labels: (outputs.argmax(1) == labels).float().mean())
        with torch.no_grad():
            inputs, labels = Data().tensors
            outputs = trainer.model(inputs)
        return {
            **found,
            "true_loss": nn.functional.cross_entropy(outputs, labels).item(),
            "true_right": (outputs.argmax(1) == labels).float().mean().item(),
        }


@pytest.mark.parametrize("size", [1, 3])
def test_metrics_are_means_over_samples(ranks: WarmRanks, size: int) -> None:
    """46 samples in batches of 8 on 3 ranks: the same as for all samples in one batch."""
    for found in ranks(evaluate_uneven, size):
        assert found["loss"] == pytest.approx(found["true_loss"], abs=1e-6)
        assert found["right"] == pytest.approx(found["true_right"], abs=1e-6)

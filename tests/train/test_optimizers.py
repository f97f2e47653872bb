"""Several optimizers with parameter groups train together, and continue together."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

import rollcall
from rollcall.train.optimizers import find_problem
from tests.train.blocks import train
from tests.train.conftest import WarmRanks
from tests.train.small import Data, differences, make_trainer


def two_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Matrices by SGD, the rest by AdamW in two groups."""
    matrices = [each for each in model.parameters() if each.dim() > 1]
    norms = [each for name, each in model.named_parameters() if "norm" in name]
    biases = [each for name, each in model.named_parameters() if each.dim() == 1 and "norm" not in name]
    groups = [{"params": norms, "weight_decay": 0.0}, {"params": biases, "lr": 0.02}]
    return [SGD(matrices, lr=0.1, momentum=0.9), AdamW(groups, lr=0.01)]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_several_optimizers_continue(ranks: WarmRanks, tmp_path: Path, strategy: str) -> None:
    """After an interruption, with a schedule for each: the same weights, bit for bit."""
    run = partial(
        train,
        batch_size=8,
        optimizer=two_optimizers,
        strategy=strategy,
        scheduler=partial(ExponentialLR, gamma=0.9),
        schedule_every="step",
    )
    whole = ranks(run, 2)[0]
    ranks(partial(run, folder=tmp_path, epochs=1), 2)
    resumed = ranks(partial(run, folder=tmp_path), 2)[0]
    assert "continuing from" in ranks.output
    assert differences(whole["weights"], resumed["weights"]) == []
    assert all(not torch.equal(whole["before"][name], each) for name, each in whole["weights"].items())
    with pytest.raises(rollcall.UsageError, match="was saved with 3 parameter groups, and the optimizer has 2"):
        ranks(partial(run, optimizer=one_group_each, folder=tmp_path), 2)


def one_group_each(model: nn.Module) -> list[torch.optim.Optimizer]:
    matrices = [each for each in model.parameters() if each.dim() > 1]
    return [SGD(matrices, lr=0.1, momentum=0.9), AdamW([each for each in model.parameters() if each.dim() == 1])]


def test_bad_optimizers_are_named() -> None:
    """A parameter in two optimizers, no optimizer, and what is none."""
    model = nn.Linear(2, 2)
    both = [SGD(model.parameters(), lr=1.0), SGD([model.bias], lr=1.0)]
    assert find_problem(both, model) == "two optimizers have the same parameter: give each parameter to one of them"
    assert find_problem([], model) == "the list of optimizers is empty: expected at least one"
    assert "the optimizer is a float" in (find_problem(0.1, model) or "")


def test_a_learning_rate_that_falls_when_the_loss_does_not() -> None:
    """The loss of the test data decides, if there are some."""
    rates: list[float] = []
    with rollcall.init() as world:
        trainer = make_trainer(
            world,
            scheduler=lambda optimizer: ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
            schedule_every="epoch",
            evaluate=lambda trainer: {"val_loss": float(trainer.epoch < 1)},
            on_epoch_end=lambda trainer, _: rates.append(trainer.optimizer.param_groups[0]["lr"]),
        )
        trainer.fit(rollcall.prepare_dataloader(Data(), world, 23), 4)
        assert rates == [0.01, 0.01, 0.005, 0.0025]
        with pytest.raises(rollcall.UsageError, match="ReduceLROnPlateau needs the loss of an epoch: use 'epoch'"):
            make_trainer(world, scheduler=ReduceLROnPlateau(trainer.optimizer), schedule_every="step")

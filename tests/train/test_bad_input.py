"""Bad input to the library: the same error on all ranks, which names the ranks; rank 0 prints it."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import rollcall as rc
from tests.rollcall_command import Runner
from tests.train.conftest import WarmRanks
from tests.train.small import Data, fit, make_trainer


def loader_of(*, samples: int, batch_size: int = 4, uneven: str = "weigh") -> None:
    with rc.init() as world:
        rc.prepare_dataloader(Data(samples), world, batch_size, uneven=uneven)  # type: ignore[arg-type]


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


def no_length() -> None:
    with rc.init() as world:
        rc.prepare_dataloader(Endless(), world)


def optimizer_of_another_model() -> None:
    with rc.init() as world:
        optimizer = torch.optim.SGD(nn.Linear(10, 3).parameters(), lr=0.1)
        rc.Trainer(nn.Linear(10, 3), optimizer, nn.functional.cross_entropy, world)


def three_in_a_batch() -> None:
    with rc.init() as world:
        inputs, targets = Data(8).tensors
        make_trainer(world).fit(rc.prepare_dataloader(TensorDataset(inputs, inputs, targets), world, 4), 1)


def other_samples() -> None:
    with rc.init() as world:
        rc.prepare_dataloader(Data(20 + world.rank // 2), world)


def other_model() -> None:
    with rc.init() as world:
        rc.wrap(nn.Sequential(nn.Linear(10, 3), nn.Linear(3, 4 if world.rank == 2 else 5)), world)


def deeper_model() -> None:
    with rc.init() as world:
        rc.wrap(nn.Sequential(*[nn.Linear(2, 2) for _ in range(1 + world.rank)]), world)


def frozen_model() -> None:
    with rc.init() as world:
        rc.wrap(nn.Linear(2, 2).requires_grad_(False), world)


def no_model() -> None:
    with rc.init() as world:
        rc.wrap(nn.ReLU(), world)


def no_memory_for_offload() -> None:
    with torch.device("meta"):
        model = nn.Linear(10**7, 10**6)
    with rc.init() as world:
        rc.wrap(model, world, rc.Fsdp(offload=True))


def per_sample(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def a_number(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return nn.functional.cross_entropy(outputs, targets).item()


def constant(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return torch.zeros(())


def uneven_loaders() -> None:
    with rc.init() as world:
        make_trainer(world).fit(DataLoader(TensorDataset(*Data(8 * (1 + world.rank)).tensors), batch_size=4), 1)


CASES: dict[str, tuple[Callable[[], Any], int, str]] = {
    "empty dataset": (partial(loader_of, samples=0), 2, "ranks 0-1: the dataset is empty"),
    "fewer samples than ranks": (partial(loader_of, samples=1), 2, "ranks 0-1: the dataset has 1 sample for 2 ranks"),
    "batch size 0": (partial(loader_of, samples=9, batch_size=0), 2, "ranks 0-1: batch_size is 0"),
    "all dropped": (
        partial(loader_of, samples=9, batch_size=8, uneven="drop"),
        2,
        "ranks 0-1: uneven='drop' would leave out all 9 samples",
    ),
    "unknown uneven": (partial(loader_of, samples=9, uneven="pad"), 1, "uneven is 'pad': use 'weigh' or 'drop'"),
    "no length": (no_length, 2, r"ranks 0-1: the dataset \(Endless\) has no length"),
    "other optimizer": (
        optimizer_of_another_model,
        2,
        "ranks 0-1: the optimizer has 2 parameters that are not the model's",
    ),
    "three in a batch": (three_in_a_batch, 2, r"ranks 0-1: a batch has 3 parts: expected \(inputs, targets\)"),
    "no patience": (partial(rc.EarlyStop, patience=0), 1, "patience is 0: expected 1 epoch or more"),
    "other datasets": (
        other_samples,
        4,
        "the ranks disagree on the dataset: ranks 0-1 have 20 samples; ranks 2-3 have 21 samples",
    ),
    "other models": (
        other_model,
        4,
        r"the ranks disagree on the model: ranks 0-1,3 have 1.weight \[5, 3\]; rank 2 has 1.weight \[4, 3\]",
    ),
    "deeper model": (deeper_model, 2, r"rank 0 has only 2 parameters; rank 1 has 1.weight \[2, 2\]"),
    "no memory": (no_memory_for_offload, 1, "offload needs 80.0 TB of this host's memory for parameters and gradients"),
    "no parameters": (no_model, 2, r"ranks 0-1: the model \(ReLU\) has no parameters"),
    "all frozen": (frozen_model, 2, r"ranks 0-1: all parameters of the model \(Linear\) are frozen"),
    "loss per sample": (
        partial(fit, loss=per_sample),
        2,
        r"ranks 0-1: the loss has the shape \[4\]: expected a scalar",
    ),
    "loss a number": (partial(fit, loss=a_number), 2, "ranks 0-1: the loss is a float: expected a tensor"),
    "loss constant": (partial(fit, loss=constant), 2, "ranks 0-1: the loss does not depend on the model's parameters"),
    "no epochs": (partial(fit, epochs=0), 2, "ranks 0-1: epochs is 0"),
    "accumulate 0": (partial(fit, accumulate=0), 2, "ranks 0-1: accumulate is 0"),
    "clip 0": (partial(fit, clip_norm=0.0), 1, r"clip_norm is 0.0: expected a number above 0"),
    "schedule": (partial(fit, schedule_every="day"), 1, "schedule_every is 'day': use 'step' or 'epoch'"),
    "strategy": (
        partial(fit, strategy="magic"),
        2,
        "strategy is 'magic': use ddp, fsdp, hsdp, none, or rollcall.Fsdp",
    ),
    "precision": (partial(fit, precision="int4"), 1, "precision is 'int4': use fp32, bf16, fp16"),
    "save interval": (partial(fit, save_every="often"), 1, "save_every is 'often': use a number of epochs"),
    "half an epoch": (partial(fit, save_every="0.5 epochs"), 1, "only whole epochs are possible"),
    "keep 0": (partial(fit, folder="unused", keep=0), 1, "keep is 0"),
    "uneven loaders": (uneven_loaders, 2, "the ranks disagree on the loader: rank 0 has 2 batches; rank 1 has 4"),
}


def run_cases(names: list[str]) -> dict[str, tuple[str, bool]]:
    """The error of each case. All run on the same ranks, so each must leave the ranks in step with each other."""
    errors = {}
    for name in names:
        try:
            CASES[name][0]()
        except rc.UsageError as error:
            errors[name] = (str(error), error.quiet)
    return errors


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_ranks_raise_the_same_error(ranks: WarmRanks, size: int) -> None:
    """What all ranks know, only rank 0 prints."""
    expected = {name: message for name, (_, ranks, message) in CASES.items() if ranks == size}
    for rank, errors in enumerate(ranks(partial(run_cases, list(expected)), size)):
        assert errors.keys() == expected.keys()
        for name, message in expected.items():
            assert re.search(message, errors[name][0]), name
            assert errors[name][1] == (rank > 0), name


def test_only_rank_0_prints_the_error(rollcall: Runner) -> None:
    """Under `rollcall run`: one line, exit code 2, nothing left running."""
    rollcall.script(
        "import rollcall, torch\nwith rollcall.init() as world:\n    rollcall.wrap(torch.nn.ReLU(), world)\n"
    )
    result = rollcall("run", "-n", 2, "script.py")
    assert result.code == 2
    assert result.err.count("has no parameters: there is nothing to train") == 1
    assert "ranks 0-1: the model (ReLU) has no parameters" in result.err

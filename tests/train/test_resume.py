"""An interrupted training ends as one that was not."""

import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import rollcall
from rollcall.train.trainer import Trainer
from tests.train.conftest import Warm
from tests.train.small import differences, distance, fit, make_model


def die_at(step: int, rank: int, trainer: Trainer) -> None:
    if trainer.step == step and trainer.world.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        (1, {}),
        (2, {"accumulate": 2, "clip_norm": 0.5, "precision": "bf16"}),
        (4, {"epochs": 4}),
        (2, {"strategy": "fsdp"}),
        (2, {"strategy": "none"}),
        (2, {"precision": "fp16", "clip_norm": 1.0, "optimizer": partial(torch.optim.SGD, momentum=0.9)}),
    ],
)
def test_interrupted_and_resumed_equals_uninterrupted(
    tmp_path: Path, ranks: Warm, size: int, options: dict[str, Any]
) -> None:
    """A rank is killed at a random step, twice; in the end all is as if nobody had saved or killed, bit for bit."""
    chance = random.Random(f"{size}{sorted(options)}")
    common: dict[str, Any] = {"save_every": "3 steps", **options}
    whole = ranks(partial(fit, **options), size)
    steps = whole[0]["step"]
    for kill_at in sorted(chance.sample(range(4, steps), 2)):
        die = partial(die_at, kill_at, chance.randrange(size))
        with pytest.raises(rollcall.RankError, match="SIGKILL"):
            ranks(partial(fit, folder=tmp_path / "cut", before_step=die, **common), size)
    resumed = ranks(partial(fit, folder=tmp_path / "cut", **common), size)
    for mine, theirs in zip(whole, resumed, strict=True):
        assert differences(mine["weights"], theirs["weights"]) == []
        assert mine["metrics"]["loss"] == theirs["metrics"]["loss"]
        assert theirs["step"] == steps


@pytest.mark.parametrize(("size", "strategy"), [(1, "ddp"), (4, "ddp"), (2, "fsdp")])
def test_a_snapshot_loads_under_another_world_and_strategy(
    tmp_path: Path, ranks: Warm, size: int, strategy: str
) -> None:
    """Taken by 2 ranks with DDP in mid-epoch, continued by others: the same weights within 1e-5."""
    plain = partial(make_model, dropout=0.0, batch_norm=False)
    common: dict[str, Any] = {"save_every": "4 steps", "model": plain}
    whole = ranks(partial(fit, model=plain), 2)
    with pytest.raises(rollcall.RankError, match="SIGKILL"):
        ranks(partial(fit, folder=tmp_path / "cut", before_step=partial(die_at, 14, 1), **common), 2)
    resumed = ranks(partial(fit, folder=tmp_path / "cut", batch_size=8 // size, strategy=strategy, **common), size)
    assert "continuing from" in ranks.said
    assert resumed[0]["step"] == whole[0]["step"]
    assert distance(whole[0]["weights"], resumed[0]["weights"]) < 1e-5
    assert abs(whole[0]["metrics"]["loss"] - resumed[0]["metrics"]["loss"]) < 1e-5

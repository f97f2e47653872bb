"""An interrupted training has the same result as an uninterrupted one."""

import os
import random
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import rollcall
from rollcall.functions.pool import RankPool
from rollcall.train.trainer import Trainer
from tests.train.conftest import WarmRanks
from tests.train.small import PLAIN_MODEL, differences, distance, fit


def kill_at(step: int, rank: int, trainer: Trainer) -> None:
    if trainer.step == step and trainer.world.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("size", "kills", "options"),
    [
        (1, 2, {}),
        (2, 1, {"accumulate": 2, "clip_norm": 0.5, "precision": "bf16"}),
        (4, 1, {}),
        (2, 1, {"strategy": "fsdp"}),
        (2, 1, {"strategy": "none"}),
        (2, 1, {"precision": "fp16", "clip_norm": 1.0, "optimizer": partial(torch.optim.SGD, momentum=0.9)}),
    ],
)
def test_interrupted_and_resumed_equals_uninterrupted(
    tmp_path: Path, ranks: WarmRanks, size: int, kills: int, options: dict[str, Any]
) -> None:
    """A rank is killed at a random step: the final weights and loss are the same, bit for bit."""
    generator = random.Random(f"{size}{sorted(options)}")
    common: dict[str, Any] = {"save_every": "3 steps", **options}
    whole = ranks(partial(fit, **options), size)
    steps = whole[0]["step"]
    for step in sorted(generator.sample(range(4, steps), kills)):
        kill = partial(kill_at, step, generator.randrange(size))
        with pytest.raises(rollcall.RankError, match="SIGKILL"):
            ranks(partial(fit, folder=tmp_path / "snapshots", before_step=kill, **common), size)
    resumed = ranks(partial(fit, folder=tmp_path / "snapshots", **common), size)
    for mine, theirs in zip(whole, resumed, strict=True):
        assert differences(mine["weights"], theirs["weights"]) == []
        assert mine["metrics"]["loss"] == theirs["metrics"]["loss"]
        assert theirs["step"] == steps


COMMON: dict[str, Any] = {"save_every": "4 steps", "model": PLAIN_MODEL}


@pytest.fixture(scope="module")
def interrupted(_server: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The snapshots of 2 ranks with DDP, of which one was killed in mid-epoch."""
    folder = tmp_path_factory.mktemp("interrupted")
    with pytest.raises(rollcall.RankError, match="SIGKILL"):
        WarmRanks(_server)(partial(fit, folder=folder, before_step=partial(kill_at, 14, 1), **COMMON), 2)
    return folder


@pytest.mark.parametrize(("size", "strategy"), [(1, "ddp"), (4, "ddp"), (2, "fsdp")])
def test_a_snapshot_loads_under_another_world_and_strategy(
    tmp_path: Path, ranks: WarmRanks, plain: dict[str, Any], interrupted: Path, size: int, strategy: str
) -> None:
    """Saved by 2 ranks with DDP in mid-epoch, continued in another way: the same weights within 1e-5."""
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    resumed = ranks(partial(fit, folder=tmp_path, batch_size=8 // size, strategy=strategy, **COMMON), size)
    assert "continuing from" in ranks.output
    assert resumed[0]["step"] == plain["step"]
    assert distance(plain["weights"], resumed[0]["weights"]) < 1e-5
    assert abs(plain["metrics"]["loss"] - resumed[0]["metrics"]["loss"]) < 1e-5

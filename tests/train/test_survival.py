"""What a kill, a preemption and a bad loss cost: seconds, and nothing of the result."""

import json
import math
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import rollcall as rc
from tests.launch.conftest import Runner, until
from tests.train.conftest import Warm
from tests.train.small import fit

TRAIN = ("train", "-n", 2, "--epochs", 12, "--save-every", "5steps")
STEPS = 12 * 23


def has_snapshot(folder: Path) -> bool:
    return any(folder.glob("snapshots/step-*"))


def rank(runner: Runner, number: int) -> psutil.Process:
    facts = json.loads((runner.latest() / "run.json").read_text())
    return psutil.Process(facts["attempts"][0]["pids"][str(number)])


def epochs_of(runner: Runner) -> list[int]:
    lines = (runner.folder / "snapshots" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["epoch"] for line in lines]


def test_a_killed_rank_costs_seconds(rollcall: Runner) -> None:
    """With --max-restarts the training goes on from the snapshot by itself, and its record has no gap and no double."""
    process = rollcall.start(*TRAIN, "--max-restarts", 1)
    assert until(lambda: has_snapshot(rollcall.folder), 90)
    rank(rollcall, 1).kill()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "continuing from snapshots/step-" in err
    assert f"{STEPS} steps done" in out
    assert epochs_of(rollcall) == list(range(12))


def test_a_killed_agent_loses_nothing(rollcall: Runner) -> None:
    """The run is over at once; the next one goes on."""
    process = rollcall.start(*TRAIN)
    assert until(lambda: has_snapshot(rollcall.folder), 90)
    server = rank(rollcall, 0).parent()
    assert server is not None
    agent = server.parent()
    assert agent is not None
    agent.kill()
    process.communicate(timeout=120)
    assert process.returncode == 137
    assert rollcall.wait_until_gone(5) == []
    result = rollcall(*TRAIN)
    assert result.code == 0, result.err
    assert "continuing from snapshots/step-" in result.err
    assert epochs_of(rollcall) == list(range(12))


def test_a_preempted_training_saves_and_leaves(rollcall: Runner) -> None:
    """SIGTERM: a snapshot of that very step, the exit code of the signal; the next start goes on there."""
    process = rollcall.start("train", "-n", 2, "--epochs", 500, "--save-every", "100000steps")
    assert until(lambda: (rollcall.folder / "snapshots" / "metrics.jsonl").exists(), 90)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    (step,) = [int(path.name[5:]) for path in (rollcall.folder / "snapshots").glob("step-*")]
    assert f"SIGTERM at step {step}: the newest snapshot is that of step {step}" in err
    done = epochs_of(rollcall)
    result = rollcall("train", "-n", 2, "--epochs", len(done) + 1)
    assert result.code == 0, result.err
    assert f"continuing from snapshots/step-{step:08d}" in result.err
    assert epochs_of(rollcall) == list(range(len(done) + 1))


def only_rank_1_is_told(trainer: Any) -> None:
    if trainer.step == 7 and trainer.world.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)


def test_all_ranks_leave_when_one_is_told(ranks: Warm, tmp_path: Path) -> None:
    """As when one pod of a job is evicted: all save the same step, and leave."""
    with pytest.raises(SystemExit, match="143"):
        ranks(partial(fit, folder=tmp_path, epochs=10_000, save_every=20_000, before_step=only_rank_1_is_told), 2)
    assert len(list(tmp_path.glob("step-*"))) == 1
    assert ranks.said.count("SIGTERM at step") == 1


def go_wrong(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    go_wrong.calls = getattr(go_wrong, "calls", 0) + 1  # type: ignore[attr-defined]
    loss = torch.nn.functional.cross_entropy(outputs, targets)
    return loss * math.nan if os.environ["RANK"] == "1" and go_wrong.calls == 11 else loss  # type: ignore[attr-defined]


def test_a_loss_that_is_not_finite_stops_the_training(ranks: Warm, tmp_path: Path) -> None:
    """Rank and step are named; the snapshots from before are kept, and none is taken after."""
    with pytest.raises(rc.RankError) as caught:
        ranks(partial(fit, folder=tmp_path, loss=go_wrong, save_every="2 steps", keep=9, epochs=50), 2)
    assert str(caught.value).startswith("the loss is not finite on rank 1 at step 11 (epoch 1)")
    assert "the newest snapshot is that of step 10" in str(caught.value)
    assert max(int(path.name[5:]) for path in tmp_path.glob("step-*")) == 10

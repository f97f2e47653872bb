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
from rollcall.train.meter import Meter
from tests.rollcall_command import Runner, until
from tests.train.conftest import Warm
from tests.train.small import PROGRAM, fit
from tests.transport.test_virtual_hosts import needs_namespaces

TRAIN = ("train", "-n", 2, "--epochs", 500, "--save-every", "5steps")


def steps_of(runner: Runner) -> list[int]:
    return sorted(int(path.name[5:]) for path in (runner.folder / "snapshots").glob("step-*"))


def rank(runner: Runner, number: int, attempt: int = 0) -> psutil.Process:
    facts = json.loads((runner.latest() / "run.json").read_text())
    return psutil.Process(facts["attempts"][attempt]["pids"][str(number)])


def agent_of(process: psutil.Process) -> psutil.Process:
    """Rank, fork server, agent: each the child of the next."""
    server = process.parent()
    assert server is not None
    agent = server.parent()
    assert agent is not None
    return agent


def epochs_of(runner: Runner) -> list[int]:
    lines = (runner.folder / "snapshots" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["epoch"] for line in lines]


@needs_namespaces
def test_a_killed_rank_and_a_lost_host_cost_seconds(rollcall: Runner) -> None:
    """With --max-restarts the training goes on from the snapshot by itself, and its record has no gap and no double."""
    rollcall.script(PROGRAM)
    rollcall.env["PYTHONPATH"] = str(Path(__file__).parent.parent.parent)
    preload = ("--preload", "tests.train.small", "--preload", "torch._dynamo")
    options = ("--virtual-hosts", 2, "-n", 1, "--max-restarts", 2, *preload)
    process = rollcall.start("run", *options, "script.py", "5 steps", 10**6, 10**6, 40)
    assert until(lambda: steps_of(rollcall), 90)
    rank(rollcall, 1).kill()
    reached = steps_of(rollcall)[-1]
    assert until(lambda: steps_of(rollcall)[-1] > reached + 10, 90), process.communicate()
    agent_of(rank(rollcall, 1, attempt=1)).kill()
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "host-2 lost its agent" in err
    assert err.count("continuing from snapshots/step-") == 2
    epochs = int(out.rpartition("epochs: ")[2])
    assert epochs >= 40
    assert f"{epochs * 6} steps done" in out
    assert epochs_of(rollcall) == list(range(epochs))


def test_a_preempted_training_and_a_killed_agent_lose_nothing(rollcall: Runner) -> None:
    """SIGTERM: a snapshot of that very step and the signal's exit code. An agent that is killed: the run is over at
    once. Whatever it was, the next start goes on from the newest snapshot.
    """
    process = rollcall.start("train", "-n", 2, "--epochs", 500, "--save-every", "100000steps")
    assert until(lambda: (rollcall.folder / "snapshots" / "metrics.jsonl").exists(), 90)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    (step,) = steps_of(rollcall)
    assert f"SIGTERM at step {step}: the newest snapshot is that of step {step}" in err

    process = rollcall.start(*TRAIN)
    assert until(lambda: steps_of(rollcall)[-1] > step, 90)
    agent_of(rank(rollcall, 0)).kill()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 137
    assert f"continuing from snapshots/step-{step:08d}" in err
    assert rollcall.wait_until_gone(5) == []

    newest, done = steps_of(rollcall)[-1], len(epochs_of(rollcall))
    result = rollcall("train", "-n", 2, "--epochs", done + 1)
    assert result.code == 0, result.err
    assert f"continuing from snapshots/step-{newest:08d}" in result.err
    assert epochs_of(rollcall) == list(range(done + 1))


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


def lag(trainer: Any) -> None:
    """As on a GPU: the newest losses are not waited for."""
    trainer._watch.meter.lags = True


@pytest.mark.parametrize("prepare", [None, lag])
def test_a_loss_that_is_not_finite_stops_the_training(ranks: Warm, tmp_path: Path, prepare: Any) -> None:
    """Rank and step are named; the snapshots from before are kept, and none is taken after."""
    wrong = partial(fit, loss=go_wrong, save_every="2 steps", keep=9, epochs=50, prepare=prepare)
    with pytest.raises(rc.RankError) as caught:
        ranks(partial(wrong, folder=tmp_path), 2)
    assert str(caught.value).startswith("the loss is not finite on rank 1 at step 11 (epoch 1)")
    assert "the newest snapshot is that of step 10" in str(caught.value)
    assert max(int(path.name[5:]) for path in tmp_path.glob("step-*")) == 10


def test_what_is_learnt_late_is_not_lost() -> None:
    """A meter that lags reads at a look what it sent for at the look before; and all of it, if asked to."""
    meter = Meter(lags=True)
    for step, value in enumerate((1.0, 2.0, math.inf, 4.0)):
        meter.add(torch.tensor(value), 3, step)
        assert meter.take(everything=step == 3)[1:] == [(0, -1), (3, -1), (3, -1), (6, 2)][step]
    assert meter.take(everything=True) == (0, 0, -1)

"""Killed ranks, lost hosts, SIGTERM, and losses that are not finite."""

import json
import math
import os
import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import rollcall as rc
from tests.rollcall_command import Runner, until
from tests.train.conftest import WarmRanks
from tests.train.small import PROGRAM, PYTHON_PATH, differences, fit
from tests.transport.test_virtual_hosts import needs_namespaces


def saved_steps(runner: Runner) -> list[int]:
    return sorted(int(path.name[5:]) for path in (runner.folder / "snapshots").glob("step-*"))


def process_of_rank(runner: Runner, number: int, attempt: int = 0) -> psutil.Process:
    facts = json.loads((runner.latest() / "run.json").read_text())
    return psutil.Process(facts["attempts"][attempt]["pids"][str(number)])


def agent_of(process: psutil.Process) -> psutil.Process:
    """A rank is a child of the fork server, which is a child of the agent."""
    server = process.parent()
    assert server is not None
    agent = server.parent()
    assert agent is not None
    return agent


def logged_epochs(runner: Runner) -> list[int]:
    lines = (runner.folder / "snapshots" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["epoch"] for line in lines]


@needs_namespaces
def test_a_training_continues_after_a_killed_rank_and_a_lost_host(rollcall: Runner) -> None:
    """With --max-restarts it continues from the newest snapshot, and metrics.jsonl has each epoch once."""
    rollcall.script(PROGRAM)
    rollcall.env["PYTHONPATH"] = PYTHON_PATH
    preload = ("--preload", "tests.train.small", "--preload", "torch._dynamo")
    options = ("--virtual-hosts", 2, "-n", 1, "--max-restarts", 2, *preload)
    process = rollcall.start("run", *options, "script.py", "5 steps", 10**6, 10**6, 40)
    assert until(lambda: saved_steps(rollcall), 90)
    process_of_rank(rollcall, 1).kill()
    reached = saved_steps(rollcall)[-1]
    assert until(lambda: saved_steps(rollcall)[-1] > reached + 10, 90), process.communicate()
    agent_of(process_of_rank(rollcall, 1, attempt=1)).kill()
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert "host-2 lost its agent" in err
    assert err.count("continuing from snapshots/step-") == 2
    epochs = int(out.rpartition("epochs: ")[2])
    assert epochs >= 40
    assert f"{epochs * 6} steps done" in out
    assert logged_epochs(rollcall) == list(range(epochs))


FREEZING = """\
import os, signal, sys, threading, torch
from pathlib import Path
from tests.train.small import fit

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
steps = [int(word) for word in sys.argv[1:]]

def freeze(trainer):
    if trainer.world.rank == attempt % 2 and steps[attempt:] and trainer.step == steps[attempt]:
        if attempt == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif attempt == 1:
            threading.Event().wait()
        else:  # for a message that was lost on the way
            torch.distributed.recv(torch.empty(1), src=1 - trainer.world.rank)

fitted = fit(folder=Path("snapshots"), epochs=4, save_every="2 steps", before_step=freeze)
if os.environ["RANK"] == "0":
    torch.save(fitted["weights"], "weights.pt")
"""


def test_a_training_that_freezes_at_random_ends_with_the_same_weights(rollcall: Runner, ranks: WarmRanks) -> None:
    """With --on-hang restart: one rank is stopped, then another one waits for ever, then one for a message that was
    lost. Each attempt keeps its verdict, and the weights are those of a training without any of that, bit for bit.
    """
    # Far apart: a rank that is asked to end makes the step that it is in, and saves it.
    steps = [random.randrange(first, first + 4) for first in (2, 10, 18)]
    rollcall.script(FREEZING)
    rollcall.env["PYTHONPATH"] = PYTHON_PATH
    options = ("--on-hang", "restart", "--max-restarts", 3, "--hang-after", 2, "--grace", 1)
    result = rollcall("run", "-n", 2, *options, "--preload", "tests.train.small", "script.py", *steps)
    assert result.code == 0, (steps, result.err)
    assert "attempt 2 is over; starting attempt 3 of at most 3" in result.err
    attempts = json.loads((rollcall.latest() / "run.json").read_text())["attempts"]
    found = [(each["verdict"]["kind"], each["verdict"]["ranks"]) for each in attempts[:-1]]
    assert found[:2] == [("stopped-rank", [0]), ("busy-rank", [1])], steps
    assert found[2][0] in ("p2p-against-collective", "unmatched-recv"), steps
    assert attempts[0]["failure"].startswith("hung: stopped-rank — look at rank 0")
    never_frozen = ranks(partial(fit, epochs=4), 2)[0]["weights"]
    assert differences(never_frozen, torch.load(rollcall.folder / "weights.pt")) == []


def test_a_preempted_training_continues_at_the_same_step(rollcall: Runner) -> None:
    """After SIGTERM it saves the current step and ends with the signal's exit code; the next start continues there,
    and metrics.jsonl has each epoch once.
    """
    process = rollcall.start("train", "-n", 2, "--epochs", 500, "--save-every", "100000steps")
    assert until(lambda: (rollcall.folder / "snapshots" / "metrics.jsonl").exists(), 90)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 128 + signal.SIGTERM
    (step,) = saved_steps(rollcall)
    assert f"SIGTERM at step {step}: the newest snapshot is that of step {step}" in err

    done = len(logged_epochs(rollcall))
    result = rollcall("train", "-n", 2, "--epochs", done + 1)
    assert result.code == 0, result.err
    assert f"continuing from snapshots/step-{step:08d}" in result.err
    assert logged_epochs(rollcall) == list(range(done + 1))


def send_sigterm_to_rank_1(trainer: Any) -> None:
    if trainer.step == 7 and trainer.world.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_on_one_rank_ends_all(ranks: WarmRanks, tmp_path: Path) -> None:
    """All ranks save the same step and end, as when one pod of a job is evicted."""
    with pytest.raises(SystemExit, match="143"):
        ranks(partial(fit, folder=tmp_path, epochs=10_000, save_every=20_000, before_step=send_sigterm_to_rank_1), 2)
    assert len(list(tmp_path.glob("step-*"))) == 1
    assert ranks.output.count("SIGTERM at step") == 1


def become_nan(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    become_nan.calls = getattr(become_nan, "calls", 0) + 1  # type: ignore[attr-defined]
    loss = torch.nn.functional.cross_entropy(outputs, targets)
    return loss * math.nan if os.environ["RANK"] == "1" and become_nan.calls == 11 else loss  # type: ignore[attr-defined]


def read_losses_late(trainer: Any) -> None:
    """As on a GPU, where the newest losses are read at the next exchange."""
    trainer._meter.lags = True


@pytest.mark.parametrize("prepare", [None, read_losses_late])
def test_a_loss_that_is_not_finite_stops_the_training(ranks: WarmRanks, tmp_path: Path, prepare: Any) -> None:
    """The error names rank and step; snapshots from before stay, and none is saved after it."""
    wrong = partial(fit, loss=become_nan, save_every="2 steps", keep=9, epochs=50, prepare=prepare)
    with pytest.raises(rc.RankError) as caught:
        ranks(partial(wrong, folder=tmp_path), 2)
    assert str(caught.value).startswith("the loss is not finite on rank 1 at step 11 (epoch 1)")
    assert "the newest snapshot is that of step 10" in str(caught.value)
    assert max(int(path.name[5:]) for path in tmp_path.glob("step-*")) == 10

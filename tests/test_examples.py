"""Every example runs with the command in its first line."""

import json
import math
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from tests.rollcall_command import Runner, until
from tests.transport.test_virtual_hosts import needs_namespaces

EXAMPLES = Path(__file__).parent.parent / "examples"
PRELOAD = ("--preload", "sklearn.datasets")


def python(runner: Runner, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=runner.folder,
        env=runner.env,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_gradients_averaged_by_hand(rollcall: Runner) -> None:
    """Each rank has its own loss; all have the same weights."""
    result = rollcall("run", "-n", 2, *PRELOAD, EXAMPLES / "average_by_hand.py")
    assert result.code == 0, result.err
    assert "weights equal on all 2 ranks: True" in result.out
    assert "rank 1 has a mean loss of" in result.out


def test_one_device(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A plain PyTorch loop. It runs in this process, which has torch."""
    script = str(EXAMPLES / "one_device.py")
    monkeypatch.setattr("sys.argv", [script, "--epochs", "2"])
    runpy.run_path(script, run_name="__main__")
    assert "epoch 1: 57 steps" in capsys.readouterr().out


def test_several_ranks_by_spawn(rollcall: Runner) -> None:
    """Two ranks take half as many steps."""
    out = python(rollcall, EXAMPLES / "several_by_spawn.py", "--ranks", 2, "--epochs", 1)
    assert "epoch 0: 29 steps" in out
    assert "the last losses of the 2 ranks" in out


def test_a_killed_rank_with_snapshots(rollcall: Runner) -> None:
    """The run continues from the snapshot to the last step."""
    words = ("run", "-n", 2, "--max-restarts", 1, *PRELOAD, EXAMPLES / "with_snapshots.py", "--epochs", 8)
    process = rollcall.start(*words)
    assert until(lambda: any(rollcall.folder.glob("snapshots/step-*")), 90)
    run = json.loads((rollcall.latest() / "run.json").read_text())
    psutil.Process(run["attempts"][0]["pids"]["1"]).kill()
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert "continuing from snapshots/step-" in err
    assert "epoch 7 is done: 232 steps" in out


@needs_namespaces
def test_a_trainer_on_two_hosts(rollcall: Runner) -> None:
    """Two hosts with one rank each."""
    words = ("--virtual-hosts", 2, "-n", 1, EXAMPLES / "several_hosts.py", "--epochs", 2)
    result = rollcall("run", *words)
    assert result.code == 0, result.err
    assert "epoch 1: loss" in result.out
    assert sorted(path.name for path in (rollcall.folder / "snapshots").glob("step-*")) == [
        "step-00000029",
        "step-00000058",
    ]


def test_a_gpt_of_characters() -> None:
    """Its recipe is built on meta, its loss begins near that of guessing, and a few steps on one batch lower it."""
    names = runpy.run_path(str(EXAMPLES / "char_gpt.py"))
    made = names["recipe"](SimpleNamespace(lr=0.003))
    assert all(parameter.is_meta for parameter in made.model.parameters())
    torch.manual_seed(0)
    model = names["CharGpt"]()
    optimizer = made.optimizer(model)
    inputs, targets = made.data[:16]
    losses = []
    for _ in range(6):
        losses.append(made.loss(model(inputs), targets))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[0].item() == pytest.approx(math.log(len(names["CHARACTERS"])), rel=0.15)
    assert losses[-1] < losses[0] - 0.5
    assert names["write"](model, "When ", 10).startswith("When ")

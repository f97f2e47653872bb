"""Runs at Weights & Biases and MLflow. Both are replaced by modules that note what they are told."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest

import rollcall
from rollcall.train.reporting.trackers import Trackers, find_problem
from tests.train.small import Data, make_trainer

_MLFLOW = """
import random
from types import SimpleNamespace
told, params = [], {}

def set_experiment(name): told.append(("experiment", name))
def start_run(run_id=None):
    random.random()  # it draws a name
    told.append(("run", run_id))
    return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "new"), data=SimpleNamespace(params=dict(params)))
def log_params(values): params.update(values)
def log_metrics(values, step): told.append((step, values))
def end_run(status): told.append(("end", status))

class MlflowClient:
    def get_metric_history(self, run_id, name):
        return [SimpleNamespace(step=each[0]) for each in told if isinstance(each[0], int) and name in each[1]]
"""
_WANDB = """
def init(project, **options): raise OSError(f"no server for {project}\\nmore")
"""


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    (tmp_path / "mlflow.py").write_text(_MLFLOW)
    (tmp_path / "wandb.py").write_text(_WANDB)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mlflow", "wandb"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import mlflow

    return mlflow


def _fit(folder: Path, epochs: int, **options: Any) -> None:
    with rollcall.init() as world:
        trainer = make_trainer(world, snapshots=folder, track="mlflow", config={"size": 3}, **options)
        trainer.fit(rollcall.prepare_dataloader(Data(), world, 23), epochs)


def test_a_training_that_continues_continues_its_run(mlflow: Any, tmp_path: Path) -> None:
    """With the same id; each epoch is there once, and a value of the configuration is not written again."""
    _fit(tmp_path / "mine", 1)
    _fit(tmp_path / "mine", 2)
    events = [each for each in mlflow.told if each[0] in ("experiment", "run", "end")]
    start = ("experiment", "mine")
    assert events == [start, ("run", None), ("end", "FINISHED"), start, ("run", "new"), ("end", "FINISHED")]
    assert [step for step, *_ in mlflow.told if isinstance(step, int)] == [2, 4]
    assert [mlflow.params[name] for name in ("size", "lr", "epochs")] == [3, 0.01, 1]


def test_steps_that_are_trained_again_are_not_written_again(mlflow: Any) -> None:
    """MLflow would keep both."""
    trackers = Trackers("mlflow")
    trackers.load_state_dict({"mlflow": "known"})
    mlflow.log_metrics({"lr": 0.1, "loss": 2.0}, 5)
    trackers.start("mine", {})
    for step, event in ((4, "step"), (5, "step"), (5, "epoch"), (6, "step")):
        trackers.write({"step": step, "event": event, "loss": 1.0, "lr": 0.1})
    assert [step for step, *_ in mlflow.told if isinstance(step, int)] == [5, 5, 6]


def test_a_training_that_fails_has_a_run_that_failed(mlflow: Any, tmp_path: Path) -> None:
    def fail(*_: Any) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        _fit(tmp_path / "mine", 1, on_epoch_end=fail)
    assert mlflow.told[-1] == ("end", "FAILED")


def test_a_tracker_that_fails_does_not_end_the_training(
    mlflow: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the server is gone")

    monkeypatch.setattr(mlflow, "log_metrics", fail)
    _fit(tmp_path / "mine", 2)
    assert capsys.readouterr().err.count("mlflow failed (the server is gone): training continues without it") == 1


def test_a_tracker_does_not_change_the_random_numbers_of_the_training(mlflow: Any, tmp_path: Path) -> None:
    numbers: list[float] = []
    with rollcall.init() as world:
        random.seed(3)
        with Trackers("mlflow").following(world, "mine", {}):
            numbers.append(random.random())
    random.seed(3)
    assert numbers == [random.random()]


def test_a_tracker_that_cannot_be_started_is_named(mlflow: Any) -> None:
    """Its first line, without the rest."""
    said = "wandb cannot be started: no server for mine; set it up, or leave it out of track"
    assert Trackers("wandb").start("mine", {}) == said
    assert "track is 'tracker': use wandb or mlflow" in (find_problem("tracker") or "")

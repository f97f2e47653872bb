"""Sends metrics to Weights & Biases or MLflow, where they are installed. Their own variables say where to."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

Track = Callable[[Mapping[str, Any]], None]


def find_problem(names: Sequence[str]) -> str | None:
    for name in names:
        if name not in _STARTS:
            return f"track is {name!r}: use {' or '.join(_STARTS)}; metrics.jsonl and TensorBoard are always written"
        if find_spec(name) is None:
            return f"track is {name!r}, which is not installed: pip install {name}"
    return None


def start(names: Sequence[str], project: str) -> tuple[list[Track], str | None]:
    """And why one of them cannot be started: no account, no server, no disk."""
    started: list[Track] = []
    for name in names:
        try:
            started.append(_STARTS[name](import_module(name), project))
        except Exception as error:  # whatever they raise
            reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
            return started, f"{name} cannot be started: {reason}; set it up, or leave it out of track"
    return started, None


def _start_wandb(wandb: Any, project: str) -> Track:
    run = wandb.init(project=project)
    return lambda record: run.log(_numbers(record), step=record["step"])


def _start_mlflow(mlflow: Any, project: str) -> Track:
    mlflow.set_experiment(project)
    mlflow.start_run()
    return lambda record: mlflow.log_metrics(_numbers(record), step=record["step"])


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if name != "step" and isinstance(value, int | float)}


_STARTS: dict[str, Callable[[Any, str], Track]] = {"wandb": _start_wandb, "mlflow": _start_mlflow}

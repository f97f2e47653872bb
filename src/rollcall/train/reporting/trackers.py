"""Sends metrics to Weights & Biases or MLflow, where they are installed. Their own variables say where to.

A training that continues from a snapshot continues its run there: snapshots contain the run's id.
"""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from rollcall.errors import say
from rollcall.train.checkpoint.rng import preserve_rng
from rollcall.train.consensus import fail_if_any
from rollcall.world import World


class TrackedRun(Protocol):
    """One training at a tracker."""

    @property
    def id(self) -> str: ...

    def write(self, record: Mapping[str, Any]) -> None: ...

    def finish(self, exit_code: int) -> None: ...


class Trackers:
    """Rank 0 starts them and writes to them. Their state is the id of each one's run, for the next start."""

    def __init__(self, names: str | Sequence[str]) -> None:
        self._names = as_names(names)
        self._ids: dict[str, str] = {}
        self._runs: dict[str, TrackedRun] = {}

    @contextmanager
    def following(self, world: World, project: str, config: Mapping[str, Any]) -> Iterator[None]:
        """Inside, the training has a run at each tracker. It ends with the training, in whatever way that ends."""
        problem = None
        if world.is_first and self._names:
            with preserve_rng(world.device):  # they draw names at random
                problem = self.start(project, config)
        if self._names:
            fail_if_any(world, problem)
        try:
            yield
        except BaseException as error:
            self.finish(_exit_code_of(error))
            raise
        self.finish(0)

    def start(self, project: str, config: Mapping[str, Any]) -> str | None:
        """Returns why one of them cannot be started: no account, no server, no disk."""
        for name in self._names:
            try:
                self._runs[name] = _RUNS[name](import_module(name), project, self._ids.get(name), config)
            except Exception as error:  # whatever they raise
                return f"{name} cannot be started: {_describe(error)}; set it up, or leave it out of track"
            self._ids[name] = self._runs[name].id
        return None

    def write(self, record: Mapping[str, Any]) -> None:
        self._for_each(lambda run: run.write(record))

    def finish(self, exit_code: int) -> None:
        self._for_each(lambda run: run.finish(exit_code))
        self._runs = {}

    def state_dict(self) -> dict[str, str]:
        return dict(self._ids)

    def load_state_dict(self, state: dict[str, str]) -> None:
        self._ids = dict(state)

    def _for_each(self, action: Callable[[TrackedRun], None]) -> None:
        """A server that does not answer does not end the training. It is not asked again: each try may take minutes."""
        for name, run in list(self._runs.items()):
            try:
                action(run)
            except Exception as error:
                del self._runs[name]
                say(f"{name} failed ({_describe(error)}): training continues without it")


class WandbRun:
    def __init__(self, wandb: Any, project: str, run_id: str | None, config: Mapping[str, Any]) -> None:
        # It ignores steps that it knows already: those after the snapshot are trained again.
        self._run = wandb.init(project=project, id=run_id, resume="allow" if run_id else None)
        self._run.config.update(dict(config), allow_val_change=True)
        self.id: str = self._run.id

    def write(self, record: Mapping[str, Any]) -> None:
        self._run.log(_numbers(record), step=record["step"])

    def finish(self, exit_code: int) -> None:
        self._run.finish(exit_code)


class MlflowRun:
    def __init__(self, mlflow: Any, project: str, run_id: str | None, config: Mapping[str, Any]) -> None:
        self._mlflow = mlflow
        mlflow.set_experiment(project)
        run = mlflow.start_run(run_id)
        self.id: str = run.info.run_id
        # It refuses to change a value that is there.
        mlflow.log_params({name: value for name, value in config.items() if name not in run.data.params})
        self._done = {event: self._last_step(mlflow, event) for event in _MEASURED_BY} if run_id else {}

    def _last_step(self, mlflow: Any, event: str) -> int:
        history = mlflow.MlflowClient().get_metric_history(self.id, _MEASURED_BY[event])
        return max((each.step for each in history), default=-1)

    def write(self, record: Mapping[str, Any]) -> None:
        # It would keep both values of a step that is trained again.
        if record["step"] > self._done.get(record["event"], -1):
            self._mlflow.log_metrics(_numbers(record), step=record["step"])

    def finish(self, exit_code: int) -> None:
        # Above 128 a signal has ended it.
        self._mlflow.end_run("FINISHED" if exit_code == 0 else "KILLED" if exit_code > 128 else "FAILED")


# A metric that every record of this event has: its history tells which steps MLflow knows.
_MEASURED_BY = {"step": "lr", "epoch": "samples"}
_RUNS: dict[str, Callable[[Any, str, str | None, Mapping[str, Any]], TrackedRun]] = {
    "wandb": WandbRun,
    "mlflow": MlflowRun,
}


def as_names(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def find_problem(names: str | Sequence[str]) -> str | None:
    for name in as_names(names):
        if name not in _RUNS:
            return f"track is {name!r}: use {' or '.join(_RUNS)}; metrics.jsonl and TensorBoard are always written"
        if find_spec(name) is None:
            return f"track is {name!r}, which is not installed: pip install {name}"
    return None


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if name != "step" and isinstance(value, int | float)}


def _exit_code_of(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1


def _describe(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".") or type(error).__name__

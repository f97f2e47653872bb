"""The metrics of a training on disk, written by rank 0: metrics.jsonl, and TensorBoard's files if it is installed."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollcall.errors import say
from rollcall.train.reporting.append import append
from rollcall.train.reporting.tensorboard import TensorBoardWriter, is_installed

FILE_NAME = "metrics.jsonl"


class MetricsLog:
    """A resumed training repeats the steps after its snapshot, so their old lines are removed first."""

    def __init__(self, folder: Path, step: int, epoch: int) -> None:
        self._path, self._folder = folder / FILE_NAME, folder
        self._tensorboard: TensorBoardWriter | None = None
        self._failed: set[str] = set()
        self._try(str(self._path), lambda: _remove_lines_after(self._path, step, epoch))
        if is_installed():
            self._try("TensorBoard's file", lambda: self._open_tensorboard(step))

    def write(self, record: Mapping[str, Any]) -> None:
        line = json.dumps({name: _to_json(value) for name, value in record.items()}) + "\n"
        self._try(str(self._path), lambda: append(self._path, line.encode()))
        if (tensorboard := self._tensorboard) is not None:
            self._try("TensorBoard's file", lambda: tensorboard.write(record))

    def _open_tensorboard(self, step: int) -> None:
        self._tensorboard = TensorBoardWriter(self._folder / "tensorboard", step)

    def _try(self, what: str, action: Callable[[], None]) -> None:
        """Metrics that cannot be written do not end the training; the first failure of each file is reported."""
        try:
            action()
        except (OSError, ImportError) as error:
            if what not in self._failed:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else error
                say(f"{what} cannot be written ({reason}): training continues without it")
            self._failed.add(what)


def _remove_lines_after(path: Path, step: int, epoch: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if _is_done(line, step, epoch)]
    if len(kept) < len(lines):
        draft = path.with_name(f".{path.name}.writing")
        draft.write_text("".join(kept))
        draft.replace(path)


def _is_done(line: str, step: int, epoch: int) -> bool:
    """Whether a line is about steps that the snapshot contains. An incomplete line is not."""
    try:
        record = json.loads(line) if line.endswith("\n") else {}
        return bool(record["step"] <= step and (record["event"] != "epoch" or record["epoch"] < epoch))
    except (ValueError, KeyError, TypeError):
        return False


def _to_json(value: Any) -> Any:
    # JSON has no NaN.
    return None if isinstance(value, float) and not math.isfinite(value) else value

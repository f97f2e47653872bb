"""The record of a training on rank 0: a JSON line for every word, and TensorBoard where it is installed."""

import json
import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollcall.errors import say

NAME = "metrics.jsonl"


class Journal:
    """Goes on where the training goes on: what was written after the snapshot is written again, not twice."""

    def __init__(self, path: Path, step: int, epoch: int) -> None:
        self._path = path
        self._board: Any = None
        self._fails = False
        self._guard(lambda: _keep_until(path, step, epoch))
        if find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(path.parent / "tensorboard", purge_step=step + 1)

    def write(self, record: Mapping[str, Any]) -> None:
        self._guard(lambda: self._append(record))
        if self._board is not None:
            for name, value in record.items():
                if name != "step" and isinstance(value, int | float):
                    self._board.add_scalar(name, value, record["step"])
            self._board.flush()

    def close(self) -> None:
        if self._board is not None:
            self._board.close()

    def _append(self, record: Mapping[str, Any]) -> None:
        with open(self._path, "a") as file:
            file.write(json.dumps({name: _plain(value) for name, value in record.items()}) + "\n")

    def _guard(self, action: Any) -> None:
        """A full disk ends no training."""
        try:
            action()
        except OSError as error:
            if not self._fails:
                say(f"{self._path} cannot be written ({error.strerror}): training goes on without it")
            self._fails = True


def _keep_until(path: Path, step: int, epoch: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        return
    lines = path.read_text().splitlines(keepends=True)
    kept = [line for line in lines if _is_before(line, step, epoch)]
    if len(kept) < len(lines):
        draft = path.with_name(f".{path.name}.writing")
        draft.write_text("".join(kept))
        draft.replace(path)


def _is_before(line: str, step: int, epoch: int) -> bool:
    """Whether a line tells of what is done; one that was cut short does not. An epoch's line comes at its end."""
    try:
        record = json.loads(line) if line.endswith("\n") else {}
        return bool(record["step"] <= step and (record["event"] != "epoch" or record["epoch"] < epoch))
    except (ValueError, KeyError, TypeError):
        return False


def _plain(value: Any) -> Any:
    # NaN is not JSON.
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""The record of a training on rank 0: a JSON line for every word, and TensorBoard where it is installed."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rollcall.errors import say
from rollcall.train.append import append
from rollcall.train.tensorboard import Board, is_installed

NAME = "metrics.jsonl"


class Journal:
    """Goes on where the training goes on: what was written after the snapshot is written again, not twice."""

    def __init__(self, path: Path, step: int, epoch: int) -> None:
        self._path = path
        self._board: Board | None = None
        self._failed: set[str] = set()
        self._guard(str(path), lambda: _keep_until(path, step, epoch))
        if is_installed():
            self._guard("TensorBoard's record", lambda: self._open_board(step))

    def write(self, record: Mapping[str, Any]) -> None:
        line = json.dumps({name: _plain(value) for name, value in record.items()}) + "\n"
        self._guard(str(self._path), lambda: append(self._path, line.encode()))
        if (board := self._board) is not None:
            self._guard("TensorBoard's record", lambda: board.write(record))

    def _open_board(self, step: int) -> None:
        self._board = Board(self._path.parent / "tensorboard", step)

    def _guard(self, what: str, action: Callable[[], None]) -> None:
        """A record that cannot be written ends no training."""
        try:
            action()
        except (OSError, ImportError) as error:
            if what not in self._failed:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else error
                say(f"{what} cannot be written ({reason}): training goes on without it")
            self._failed.add(what)


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

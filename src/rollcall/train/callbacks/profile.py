"""torch.profiler for some steps of a training."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rollcall.errors import UsageError
from rollcall.train.callbacks.callback import Callback

if TYPE_CHECKING:
    from rollcall.train.trainer import Trainer


class Profile(Callback):
    """Writes `rank-R.json` of the steps from `first` to `last` into `folder`; open it in Perfetto or chrome://tracing."""

    def __init__(self, first: int, last: int, folder: str | Path = "profile", **options: Any) -> None:
        if not 1 <= first <= last:
            raise UsageError(f"Profile({first}, {last}) has no steps: expected the first and the last, counted from 1")
        self._first, self._last, self._folder, self._options = first, last, Path(folder), options
        self._profiler: Any = None

    def step_begin(self, trainer: "Trainer", batches: list[Any]) -> None:
        if trainer.step + 1 == self._first:
            self._profiler = torch.profiler.profile(**self._options)
            self._profiler.start()

    def step_end(self, trainer: "Trainer") -> None:
        if trainer.step == self._last:
            self._write(trainer)

    def fit_end(self, trainer: "Trainer") -> None:
        self._write(trainer)

    def _write(self, trainer: "Trainer") -> None:
        if self._profiler is None:
            return
        self._profiler.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(str(self._folder / f"rank-{trainer.world.rank}.json"))
        self._profiler = None

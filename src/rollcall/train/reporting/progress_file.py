"""How far the training is, for others who look at the run: a file in the run's folder, written by rank 0."""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from rollcall.runs import TRAINING

_EVERY_S = 1.0
_BYTES = 256  # always as many: a copy of the file is overwritten in place


class ProgressFile:
    """Written under `rollcall run` only, at most once a second."""

    def __init__(self, enabled: bool, environ: Mapping[str, str] = os.environ) -> None:
        folder = environ.get("ROLLCALL_RUN") if enabled else None
        self._path = Path(folder, TRAINING) if folder else None
        self._last_s, self._last_samples = time.monotonic(), 0

    def write(self, step: int, epoch: int, samples: int) -> None:
        """`samples`: of all ranks and epochs until now."""
        passed_s = time.monotonic() - self._last_s
        if self._path is None or passed_s < _EVERY_S:
            return
        speed = max(samples - self._last_samples, 0) / passed_s if self._last_samples else 0.0
        self._last_s, self._last_samples = time.monotonic(), samples
        said = json.dumps({"step": step, "epoch": epoch, "samples": samples, "samples_per_s": round(speed, 3)})
        with contextlib.suppress(OSError):  # a full disk does not end the training
            self._path.write_text(said.ljust(_BYTES - 1) + "\n")

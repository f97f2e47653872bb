"""Writes what the GPUs of this host do while ranks run to a file beside their rings, which explain reads."""

import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollcall.agent.health.nvml import Nvml, NvmlError
from rollcall.runs import GPU_SAMPLES

_EVERY_S = 1.0  # a GPU that is throttled stays so for seconds
_WRITE_S = 10.0  # between lines where nothing has changed
_MOST_BYTES = 32 << 20  # days of eight GPUs
_STATE = ("throttled", "uncorrected_errors", "lost", "pids")  # a line is written at once when one of these changes


class GpuSamples:
    """Looks once a second, in a thread of its own: the driver of a broken GPU may take long to answer. Where there is
    no NVML, nothing is done."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, folder: Path) -> None:
        """`folder`: where the rings of the attempt are."""
        self.end()
        try:
            nvml = Nvml(self._environ)
        except NvmlError:
            return
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=_follow, args=(nvml, folder, visible(self._environ), self._over), name="GPUs", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """The thread ends by itself: at once, unless the driver does not answer."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_EVERY_S)
            self._thread = None


def visible(environ: Mapping[str, str]) -> list[int] | None:
    """Numbers of the GPUs that ranks use, the first local rank the first of them; None: they are all in their order, or
    named in another way than by numbers."""
    numbers = [word.strip() for word in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return [int(word) for word in numbers] if all(word.isdecimal() for word in numbers) else None


def _follow(nvml: Nvml, folder: Path, gpus: list[int] | None, over: threading.Event) -> None:
    host = socket.gethostname()
    folder.mkdir(parents=True, exist_ok=True)
    before: list[dict[str, Any]] = []
    next_s, size_bytes = 0.0, 0
    with open(folder / GPU_SAMPLES.format(host=host), "w") as lines:
        is_last = False
        while not is_last and size_bytes < _MOST_BYTES:
            is_last = over.wait(_EVERY_S if before else 0)
            at_ns = time.time_ns()
            try:
                found = nvml.sample()
            except NvmlError:  # the driver is gone as a whole
                return
            if is_last or time.monotonic() >= next_s or _has_changed(before, found):
                line = {"at_ns": at_ns, "host": host, "visible": gpus, "gpus": found}
                size_bytes += lines.write(json.dumps(line) + "\n")
                lines.flush()
                next_s = time.monotonic() + _WRITE_S
            before = found


def _has_changed(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> bool:
    states = [[[gpu.get(name) for name in _STATE] for gpu in gpus] for gpus in (before, now)]
    return states[0] != states[1] or any(gpu.get("xids") for gpu in now)

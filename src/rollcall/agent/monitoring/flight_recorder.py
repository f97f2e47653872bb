"""Makes nccl write dumps of torch's Flight Recorder to the run's folder.

nccl's ops are queued on the GPU. The rings have the ops that each rank has started; the dumps have the ops that the GPU
has completed. torch records anyway (2,000 ops by default), and writes when an op times out. So it costs nothing to tell
it where to write. A thread of torch also checks a pipe every second: a write to it asks for a dump when a run hangs.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from rollcall.protocol.devices import visible_gpus
from rollcall.runs import DUMPS

_DUMP_S = 8.0  # for ranks to write: torch looks at the pipe every second, and takes as long for the stacks of its ops
_SETTLE_S = 0.05  # between the first and the last byte of a dump
# Each variable with its older names; what the user has set, by any name, stays.
_BUFFER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_ON_TIMEOUT = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)
_PIPE = ("TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")


class FlightRecorder:
    """Without a GPU there is no nccl, and nothing is set or asked."""

    def __init__(self, folder: Path, environ: Mapping[str, str] | None = None, gpus: int | None = None) -> None:
        self._folder = folder
        self._environ = os.environ if environ is None else environ
        self._gpus = gpus
        # On a disk of this host: not every shared file system has pipes, and torch ends the rank where there are none.
        self._pipes: tempfile.TemporaryDirectory[str] | None = None

    def env(self, attempt: int) -> dict[str, str]:
        """The variables for the ranks of an attempt."""
        if not (visible_gpus() if self._gpus is None else self._gpus):
            return {}
        place = self._place(attempt)
        try:
            place.mkdir(parents=True, exist_ok=True)
            self._pipes = self._pipes or tempfile.TemporaryDirectory(prefix="rollcall-pipes-")
        except OSError:  # the run continues without dumps
            return {}
        wanted = {
            _BUFFER: "2000",
            _FILE: f"{place}/nccl_trace_rank_",
            _ON_TIMEOUT: "1",
            _PIPE: f"{self._pipes.name}/rank-",
        }
        free = {names: value for names, value in wanted.items() if not any(name in self._environ for name in names)}
        # The pipe has its old name only; of the others, the old names make torch warn.
        return {names[-1] if names == _PIPE else names[0]: value for names, value in free.items()}

    def ask(self, attempt: int, ranks: Iterable[int]) -> None:
        """Have ranks write their dumps, and wait until they have, or a moment. Ranks that use no nccl do not listen."""
        asked_ns = time.time_ns()
        asked = [rank for rank in ranks if self._pipes is not None and _write(Path(self._pipes.name), rank)]
        files = [self._place(attempt) / f"nccl_trace_rank_{rank}" for rank in asked]
        deadline = time.monotonic() + _DUMP_S
        while not all(_is_since(file, asked_ns) for file in files) and time.monotonic() < deadline:
            time.sleep(_SETTLE_S)
        time.sleep(_SETTLE_S if files else 0)

    def close(self) -> None:
        if self._pipes is not None:
            self._pipes.cleanup()
            self._pipes = None

    def _place(self, attempt: int) -> Path:
        return self._folder / DUMPS / f"attempt-{attempt}"


def _write(pipes: Path, rank: int) -> bool:
    """Whether somebody listens."""
    with contextlib.suppress(OSError):
        fd = os.open(pipes / f"rank-{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.write(fd, b"1") > 0
        finally:
            os.close(fd)
    return False


def _is_since(file: Path, ns: int) -> bool:
    with contextlib.suppress(OSError):
        return file.stat().st_mtime_ns >= ns and file.stat().st_size > 0
    return False

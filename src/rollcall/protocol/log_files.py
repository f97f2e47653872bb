"""The ranks' log files: written by the agent, or by the launcher where the disk is not shared.

A log holds what its rank printed, unchanged. A file beside it, such as `rank-0.times`, has an entry for each write: the
time in nanoseconds and the offset in the log, eight bytes each.
"""

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rollcall.protocol.plan import Plan

STAMP = struct.Struct("<QQ")
TIMES = ".times"


@dataclass(frozen=True)
class RankLogs:
    """Where one rank's output of one attempt goes."""

    stdout: Path
    stderr: Path
    error: Path  # where @record of torch elastic would leave its traceback

    @classmethod
    def of(cls, plan: Plan, folder: Path, attempt: int, rank: int, local_rank: int) -> "RankLogs":
        error = folder / "errors" / f"attempt-{attempt}" / f"rank-{rank}.json"
        error.parent.mkdir(parents=True, exist_ok=True)
        if plan.log_dir is None:
            log = folder / "logs" / f"attempt-{attempt}" / f"rank-{rank}.log"
            return cls(log, log, error)
        # torchrun's layout, for those who have scripts that look for it
        place = Path(plan.cwd, plan.log_dir, plan.run_id, f"attempt_{attempt}", str(local_rank))
        return cls(place / "stdout.log", place / "stderr.log", error)


class LogFiles:
    """Appends to log files. If a file cannot be written, a message says so, and the ranks continue."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._files: dict[Path, BinaryIO | None] = {}
        self._times: dict[Path, BinaryIO] = {}

    def write(self, log: Path, data: bytes) -> None:
        if log not in self._files:
            self._files[log] = self._open(log)
        file = self._files[log]
        if file is None:
            return
        try:
            if data and log in self._times:
                self._times[log].write(STAMP.pack(time.time_ns(), file.tell()))
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        except OSError as error:  # a full disk must not end the ranks
            self._files[log] = None
            self._give_up(log, error)

    def close(self) -> None:
        for file in (*self._files.values(), *self._times.values()):
            if file is not None:
                file.close()
        self._files.clear()
        self._times.clear()

    def _open(self, log: Path) -> BinaryIO | None:
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            if log.stem.startswith("rank-"):  # the folders of --log-dir look as torchrun's do
                self._times[log] = open(log.with_suffix(TIMES), "ab", buffering=0)  # noqa: SIM115
            return open(log, "ab", buffering=0)
        except OSError as error:
            self._give_up(log, error)
            return None

    def _give_up(self, log: Path, error: OSError) -> None:
        self._tell(
            f"{log} is no longer written ({error.strerror}); the ranks continue, their output is shown here only"
        )

"""The ranks' log files: written on the host, or by the launcher where the disk is not shared."""

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


class LogFiles:
    """Files that only grow. One that cannot be written is given up with a word: the ranks go on."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._files: dict[Path, BinaryIO | None] = {}

    def write(self, log: Path, data: bytes) -> None:
        if log not in self._files:
            self._files[log] = self._open(log)
        file = self._files[log]
        if file is None:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        except OSError as error:  # a full disk must not end the ranks
            self._files[log] = None
            self._give_up(log, error)

    def close(self) -> None:
        for file in self._files.values():
            if file is not None:
                file.close()
        self._files.clear()

    def _open(self, log: Path) -> BinaryIO | None:
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            return open(log, "ab", buffering=0)
        except OSError as error:
            self._give_up(log, error)
            return None

    def _give_up(self, log: Path, error: OSError) -> None:
        self._tell(f"{log} is no longer written ({error.strerror}); the ranks go on, output is shown here only")

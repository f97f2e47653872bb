"""A run's folder as one host sees it: the launcher's own, or a temporary one where the disk is not shared."""

import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import File
from rollcall.protocol.plan import Plan
from rollcall.runs import read_facts, rings_of

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class HostFolder:
    path: Path
    shared: bool = True
    _sending: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @classmethod
    def of(cls, plan: Plan, folder: Path) -> "HostFolder":
        if (read_facts(folder).get("plan") or {}).get("run_id") == plan.run_id:
            return cls(folder)
        return cls(Path(tempfile.mkdtemp(prefix=f"rollcall-{plan.run_id}-")), shared=False)

    def send_back(self, channel: Channel) -> None:
        """Move what ranks have left in a temporary folder to the launcher's disk. Output is there already."""
        if self.shared:
            return
        with self._sending:
            self._send_part(channel, ".")
            for path in sorted(self.path.rglob("*")):
                with contextlib.suppress(OSError):
                    if path.is_file():
                        path.unlink()

    def send_copies(self, channel: Channel, part: str) -> None:
        """Send copies of the files in a part of the folder, unless the launcher sees the folder itself."""
        self.unless_sent_back(lambda: self._send_part(channel, part))

    def unless_sent_back(self, send: Callable[[], None]) -> None:
        """For parts of files. Not during or after `send_back`: an older part would overwrite a newer one."""
        if self._sending.acquire(blocking=False):
            try:
                send()
            finally:
                self._sending.release()

    def rings(self, attempt: int) -> Path:
        return rings_of(self.path, attempt)

    def _send_part(self, channel: Channel, part: str) -> None:
        for path in sorted((self.path / part).rglob("*")) if not self.shared else ():
            with contextlib.suppress(OSError):
                if path.is_file() and not path.is_symlink():
                    self._send_file(channel, path)

    def _send_file(self, channel: Channel, path: Path) -> None:
        with open(path, "rb") as file:
            for at in _chunks_with_data(file):
                file.seek(at)
                channel.send(File(str(path.relative_to(self.path)), at, file.read(_CHUNK_BYTES)))

    def remove(self) -> None:
        if not self.shared:
            shutil.rmtree(self.path, ignore_errors=True)


def _chunks_with_data(file: BinaryIO) -> Iterator[int]:
    """Where the chunks of a file begin that hold data: most of a ring is a hole. The last chunk is always included."""
    size = os.fstat(file.fileno()).st_size
    for at in range(0, size, _CHUNK_BYTES):
        is_last = at + _CHUNK_BYTES >= size
        with contextlib.suppress(OSError):  # past the last data
            if is_last or os.lseek(file.fileno(), at, os.SEEK_DATA) < at + _CHUNK_BYTES:
                yield at

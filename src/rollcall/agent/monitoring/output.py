"""Passes on what ranks print: from pipes to log files, unchanged, and to the launcher."""

import contextlib
import os
import selectors
import threading
from dataclasses import dataclass
from pathlib import Path

from rollcall.protocol.channel import Channel
from rollcall.protocol.log_files import LogFiles
from rollcall.protocol.messages import Note, Output

_CHUNK_BYTES = 1 << 16  # what a pipe holds


@dataclass(frozen=True)
class _Source:
    """The read end of one stream of one rank."""

    rank: int
    stream: int
    log: Path


class OutputPump:
    """One thread that reads what the ranks write, so that no rank ever waits for another's output."""

    def __init__(self, channel: Channel, keeps_logs: bool = True) -> None:
        self._channel = channel
        self._keeps_logs = keeps_logs  # else the launcher does, on its own disk
        self._sources: dict[int, _Source] = {}
        self._logs = LogFiles(lambda text: channel.send(Note(text)))
        self._selector = selectors.DefaultSelector()
        self._reading = threading.Lock()
        threading.Thread(target=self._pump, name="output", daemon=True).start()

    def pipe(self, rank: int, stream: int, log: Path) -> int:
        """A new pipe from a rank; returns the end that the rank writes to."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        with self._reading:
            self._write(log, b"")  # a rank that prints nothing has a log, too
            self._sources[read] = _Source(rank, stream, log)
            self._selector.register(read, selectors.EVENT_READ)
        return write

    def drain(self, rank: int) -> None:
        """Read all that a rank has written until now."""
        with self._reading:
            for fd in [fd for fd, source in self._sources.items() if source.rank == rank]:
                while self._read(fd):
                    pass

    def close(self) -> None:
        """Read what is left; close pipes and files. Processes that still hold the other end of a pipe do not matter."""
        with self._reading:
            for fd in list(self._sources):
                while self._read(fd):
                    pass
            for fd in list(self._sources):
                self._drop(fd)
            self._logs.close()

    def _pump(self) -> None:
        while True:
            for key, _ in self._selector.select(timeout=0.1):
                with self._reading:
                    self._read(key.fd)

    def _read(self, fd: int) -> bool:
        """Pass one chunk on. False if there is nothing to read now."""
        source = self._sources.get(fd)
        if source is None:
            return False
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._drop(fd)
            return False
        self._write(source.log, data)
        with contextlib.suppress(BrokenPipeError):  # the launcher is gone; the agent is about to notice
            self._channel.send(Output(source.rank, source.stream, data))
        return True

    def _drop(self, fd: int) -> None:
        self._selector.unregister(fd)
        del self._sources[fd]
        os.close(fd)

    def _write(self, log: Path, data: bytes) -> None:
        if self._keeps_logs:
            self._logs.write(log, data)

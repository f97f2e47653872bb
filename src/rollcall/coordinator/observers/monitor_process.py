"""Starts the process that computes metrics and looks for stragglers, and reads which stragglers it finds."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rollcall.errors import UsageError
from rollcall.ports import listen
from rollcall.protocol.exit_codes import how_it_ended
from rollcall.protocol.plan import LOOPBACK

_MOST_PORT = 65535


def listener_of(address: str) -> socket.socket:
    """A socket that listens on HOST:PORT; on loopback, if only a port is named."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) <= _MOST_PORT:
        raise UsageError(f"--metrics {address} is not an address: use 127.0.0.1:9100, or 9100 for that")
    return listen(host.strip("[]") or LOOPBACK, int(port))


class MonitorProcess:
    """`say` tells the user if that process dies: the run continues without it."""

    def __init__(self, folder: Path, listener: socket.socket | None, say: Callable[[str], None]) -> None:
        self._say, self._is_gone = say, False
        fds = [] if listener is None else [listener.fileno()]
        command = [sys.executable, "-m", "rollcall.live.metrics.monitor", str(folder), str(os.getpid()), *map(str, fds)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=fds)
        assert self._process.stdout is not None
        self._out = self._process.stdout
        os.set_blocking(self._out.fileno(), False)
        self._partial = b""

    def stragglers(self) -> Iterator[dict[str, Any]]:
        """The findings that have come since the last call."""
        if self._is_gone:
            return
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self._out.fileno(), 1 << 16)
            self._partial += chunk
            if not chunk:
                self._is_gone = True
                self._say(f"no more metrics: their process {how_it_ended(self._process.wait())}; the run continues")
        *lines, self._partial = self._partial.split(b"\n")
        for line in lines:
            yield json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()

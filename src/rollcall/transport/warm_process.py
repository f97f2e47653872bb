"""An agent that is not a child of this process: a supervisor, a child of the warm server, reports its end."""

import contextlib
import socket
import subprocess

from rollcall.linux import fd_messages
from rollcall.linux.child_process import ChildProcess


class WarmProcess(ChildProcess):
    """`wait` returns once all that the agent started is gone, too; None where its supervisor was killed."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        super().__init__(pid)
        self._link = link

    def _kill(self) -> None:
        with contextlib.suppress(OSError):
            fd_messages.send(self._link, {"kill": True}, [])

    def _wait(self, timeout: float | None) -> int | None:
        self._link.settimeout(timeout)
        try:
            return int(fd_messages.receive(self._link)[0]["code"])
        except TimeoutError:
            raise subprocess.TimeoutExpired("the agent", timeout or 0) from None
        except (OSError, EOFError):
            return None

"""An agent that is not a child of this process: a supervisor, a child of the warm server, reports its end."""

import contextlib
import socket
import subprocess
import threading

from rollcall.linux import fd_messages


class WarmProcess:
    """The part of Popen that is used for an agent."""

    stderr = None  # the agent writes to the stderr of this process

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._code: int | None = None
        self._is_over = False
        self._lock = threading.Lock()

    def kill(self) -> None:
        if not self._is_over:
            with contextlib.suppress(OSError):
                fd_messages.send(self._link, {"kill": True}, [])

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit code, as from Popen, once all that it started is gone, too; None where its supervisor was killed, so
        that the code is lost. Raises TimeoutExpired."""
        with self._lock:
            if not self._is_over:
                self._code = self._wait(timeout)
                self._is_over = True
            return self._code

    def _wait(self, timeout: float | None) -> int | None:
        self._link.settimeout(timeout)
        try:
            return int(fd_messages.receive(self._link)[0]["code"])
        except TimeoutError:
            raise subprocess.TimeoutExpired("the agent", timeout or 0) from None
        except (OSError, EOFError):
            return None

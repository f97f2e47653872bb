"""A child that was started without the subprocess module, before that was imported."""

import contextlib
import os
import select
import signal
import subprocess
import threading


class ChildProcess:
    """The part of Popen that is used for an agent."""

    stderr = None  # the child writes to the stderr of this process

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._code: int | None = None
        self._is_over = False
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit code, as from Popen; None where another part of this process has reaped it, so that the code is
        lost. Raises TimeoutExpired."""
        with self._lock:
            if not self._is_over:
                self._code = self._wait(timeout)
                self._is_over = True
            return self._code

    def kill(self) -> None:
        if not self._is_over:
            self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        try:
            fd = os.pidfd_open(self._pid)
        except ProcessLookupError:
            return None
        try:
            if not select.select([fd], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("the agent", timeout or 0)
        finally:
            os.close(fd)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        except ChildProcessError:
            return None

"""A process that this one has started without subprocess, which had not been imported yet."""

import contextlib
import os
import select
import signal
import subprocess
import threading


class Child:
    """As much of Popen as those need who speak with an agent."""

    stderr = None  # it is our own

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._code: int | None = None
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, as Popen has it. Raises TimeoutExpired."""
        with self._lock:
            if self._code is None:
                self._code = self._wait(timeout)
            return self._code

    def kill(self) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int:
        try:
            fd = os.pidfd_open(self._pid)
        except ProcessLookupError:  # somebody else has waited for it
            return 0
        try:
            if not select.select([fd], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("the agent", timeout or 0)
        finally:
            os.close(fd)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

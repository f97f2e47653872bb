"""Runs a command of the user for each event of a run, with one JSON object on its standard input."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rollcall.errors import UsageError

Event = Literal["started", "host-lost", "hang", "restart", "straggler", "finished"]
_MOST_S = 30.0  # a command that takes longer is ended
_LAST_S = 10.0  # the same when the run is over, and its launcher waits
_STDERR = 2


@dataclass(frozen=True)
class _RunningCommand:
    """A command that was started for an event."""

    event: str
    process: "subprocess.Popen[bytes]"
    began_s: float


class Events:
    """Each event has a process of its own, so that a slow one keeps nobody waiting. `now` is a clock in seconds."""

    def __init__(
        self, command: str, folder: Path, say: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._command, self._folder, self._say, self._now = command, folder, say, now
        self._running: list[_RunningCommand] = []
        self._has_failed = False

    def emit(self, event: Event, **facts: Any) -> None:
        if not self._command:
            return
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        told = {"event": event, "time": when, "run": self._folder.name, "folder": str(self._folder), **facts}
        fd = _file_of(json.dumps(told, default=str).encode() + b"\n")
        try:
            process = subprocess.Popen(["/bin/sh", "-c", self._command], stdin=fd, stdout=_STDERR)
        except OSError as error:
            self._fail(f"--on-event cannot be started ({error.strerror})")
        else:
            self._running.append(_RunningCommand(event, process, self._now()))
        finally:
            os.close(fd)

    def tick(self, most_s: float = _MOST_S) -> None:
        """Look which commands have ended, and end those that take too long."""
        for each in list(self._running):
            code = each.process.poll()
            if code is None and self._now() - each.began_s > most_s:
                each.process.kill()
                each.process.wait()
                self._fail(f"--on-event took longer than {most_s:g} s for {each.event}, and was ended")
            elif code:
                self._fail(f"--on-event ended with {code} for {each.event}")
            if each.process.returncode is not None:
                self._running.remove(each)

    def close(self) -> None:
        """Wait for the last ones."""
        deadline_s = self._now() + _LAST_S
        for each in self._running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.process.wait(max(deadline_s - self._now(), 0))
        self.tick(most_s=0.0)

    def _fail(self, text: str) -> None:
        """Report a command that fails, but only once: the run continues without it."""
        if not self._has_failed:
            self._say(f"{text}: the run continues; `{self._command}` gets one JSON object on its standard input")
        self._has_failed = True


def check(command: str) -> None:
    """Whether the shell knows the first word of the command: later, nobody may be there to correct it. A line that
    does not begin with a plain word is left to the shell."""
    word = re.match(r"\s*([\w./+-]+)(?=\s|$)", command)
    if word and not _is_command(word[1]):
        raise UsageError(
            f"--on-event {command}: there is no command {word[1]} here: check its name, or give its whole path"
        )


def _is_command(word: str) -> bool:
    """A word with a slash is a file, which the shell takes for a command even if it cannot be executed."""
    if "/" in word:
        return shutil.which(word) is not None
    return subprocess.run(["/bin/sh", "-c", 'command -v "$1" > /dev/null', "sh", word], check=False).returncode == 0


def _file_of(data: bytes) -> int:
    """A file in memory, to be read from its beginning: no pipe that somebody has to fill."""
    fd = os.memfd_create("rollcall-event", os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd

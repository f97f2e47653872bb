"""The terminals of debuggers: that of the launcher, or that of `rollcall attach`, through files of the run."""

import contextlib
import json
import queue
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any, Protocol

from rollcall.live.questions import new_lines

_GONE_AFTER_S = 15.0  # `rollcall attach` touches its file every second


class Terminal(Protocol):
    """`ask` asks for a line, which `lines` returns later; None: no further line will come."""

    def show(self, text: str) -> None: ...

    def ask(self, prompt: str) -> None: ...

    def lines(self) -> list[str | None]: ...

    def close(self) -> None: ...


class OwnTerminal:
    """Standard input and output of the launcher. A thread waits for the lines; readline gives them a history."""

    def __init__(self) -> None:
        self._prompts: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._before = termios.tcgetattr(0) if sys.stdin is not None and sys.stdin.isatty() else None
        threading.Thread(target=self._read, name="terminal", daemon=True).start()

    def show(self, text: str) -> None:
        print(text, end="", flush=True)

    def ask(self, prompt: str) -> None:
        self._prompts.put(prompt)

    def lines(self) -> list[str | None]:
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._lines.get_nowait())
        return found

    def close(self) -> None:
        """The thread may still wait for a line, with readline's settings of the terminal."""
        if self._before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def _read(self) -> None:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (input() uses it)
        while True:
            try:
                self._lines.put(input(self._prompts.get()) + "\n")
            except (EOFError, OSError, ValueError):
                self._lines.put(None)


class FileTerminal:
    """The terminal of `rollcall attach`: two files of JSON lines beside its question, wherever it sees the run's
    folder."""

    def __init__(self, question: Path) -> None:
        self._question = question
        self._to, self._from = question.with_suffix(".out"), question.with_suffix(".in")
        self._read = 0
        self._touched_ns, self._alive_s = 0, time.monotonic()

    def show(self, text: str) -> None:
        self._tell(text=text)

    def ask(self, prompt: str) -> None:
        self._tell(prompt=prompt)

    def lines(self) -> list[str | None]:
        found, self._read = new_lines(self._from, self._read)
        return [each["line"] for each in found] or ([] if self._is_alive() else [None])

    def close(self) -> None:
        self._tell(end=True)

    def _is_alive(self) -> bool:
        """By changes alone: it may be on another machine, with another clock."""
        with contextlib.suppress(OSError):
            touched_ns = self._question.stat().st_mtime_ns
            if touched_ns != self._touched_ns:
                self._touched_ns, self._alive_s = touched_ns, time.monotonic()
            return time.monotonic() - self._alive_s < _GONE_AFTER_S
        return False

    def _tell(self, **message: Any) -> None:
        with contextlib.suppress(OSError), open(self._to, "a") as file:
            file.write(json.dumps(message) + "\n")

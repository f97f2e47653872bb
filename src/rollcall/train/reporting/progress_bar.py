"""How much of the epoch is done, on rank 0's stderr: a moving bar in a terminal, a line every 5 s under `rollcall run`.

Not with rich.progress: its import takes 50 ms on rank 0, and under `rollcall run`, where stderr is a pipe, it would
show the bar only at its end.
"""

import math
import os
import sys
import time

from rollcall.initialization import environment

_WIDTH = 24
_TERMINAL_S = 0.2
_PIPE_S = 5.0  # rollcall's console keeps every line
_ERASE_LINE = "\r\x1b[K"


class ProgressBar:
    """Shown in a terminal and under `rollcall run`. In other pipes nothing is written."""

    def __init__(self, enabled: bool) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._enabled = enabled and (self._is_terminal or environment.is_ours(os.environ))
        self._interval_s = _TERMINAL_S if self._is_terminal else _PIPE_S
        self._last_s = time.monotonic()
        self._needs_clearing = False

    def show(self, epoch: int, epochs: int, done: int, total: int, loss: float) -> None:
        now = time.monotonic()
        if not self._enabled or now - self._last_s < self._interval_s:
            return
        self._last_s = now
        full = round(_WIDTH * done / total) if total else 0
        shown_loss = f" loss {loss:.4f}" if math.isfinite(loss) else ""  # a GPU's first losses are not known yet
        text = f"epoch {epoch + 1}/{epochs} {'━' * full}{'┄' * (_WIDTH - full)} {done:,}/{total:,}{shown_loss}"
        self._needs_clearing = self._is_terminal
        self._write(f"{_ERASE_LINE}{text}" if self._is_terminal else f"{text}\n")

    def clear(self) -> None:
        """Remove the bar before something else is printed."""
        if self._needs_clearing:
            self._write(_ERASE_LINE)
            self._needs_clearing = False

    def _write(self, text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)

"""How far the epoch is, on rank 0's stderr: a bar that moves in a terminal, a line now and then under rollcall."""

import math
import os
import sys
import time

from rollcall.initialization import environment

_WIDTH = 24
_TERMINAL_S = 0.2
_CONSOLE_S = 5.0  # rollcall's console keeps every line; in other pipes there is no bar


class Bar:
    def __init__(self, shown: bool) -> None:
        self._moves = sys.stderr.isatty()
        self._shown = shown and (self._moves or environment.is_ours(os.environ))
        self._every_s = _TERMINAL_S if self._moves else _CONSOLE_S
        self._last = time.monotonic()
        self._length = 0

    def show(self, epoch: int, epochs: int, done: int, total: int, loss: float) -> None:
        now = time.monotonic()
        if not self._shown or now - self._last < self._every_s:
            return
        self._last = now
        full = round(_WIDTH * done / total) if total else 0
        known = f" loss {loss:.4f}" if math.isfinite(loss) else ""  # a GPU's first ones are still to come
        text = f"epoch {epoch + 1}/{epochs} {'━' * full}{'┄' * (_WIDTH - full)} {done:,}/{total:,}{known}"
        if self._moves:
            self._overwrite(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Make room for a line of somebody else."""
        if self._length:
            self._overwrite("")
            print(end="\r", file=sys.stderr, flush=True)

    def _overwrite(self, text: str) -> None:
        print(f"\r{text.ljust(self._length)}", end="", file=sys.stderr, flush=True)
        self._length = len(text)

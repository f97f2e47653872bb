"""How far the epoch is, on rank 0's stderr: a bar in a terminal and under rollcall, nothing in other pipes."""

import os
import sys
import time

from rollcall import env

_WIDTH = 24
_EVERY_S = 0.5


class Bar:
    def __init__(self, shown: bool) -> None:
        # rollcall's console shows the newest state of a bar once a second.
        self._shown = shown and (sys.stderr.isatty() or env.is_ours(os.environ))
        self._last = time.monotonic()  # an epoch that is over sooner needs no bar
        self._length = 0

    def show(self, epoch: int, epochs: int, done: int, total: int, loss: float) -> None:
        now = time.monotonic()
        if not self._shown or now - self._last < _EVERY_S:
            return
        self._last = now
        full = round(_WIDTH * done / total) if total else 0
        text = f"epoch {epoch + 1}/{epochs} {'━' * full}{'┄' * (_WIDTH - full)} {done:,}/{total:,} loss {loss:.4f}"
        self._write(text)

    def clear(self) -> None:
        if self._length:
            self._write("")
            sys.stderr.write("\r")
            sys.stderr.flush()
            self._length = 0

    def _write(self, text: str) -> None:
        sys.stderr.write(f"\r{text.ljust(self._length)}")
        sys.stderr.flush()
        self._length = len(text)

"""Whether the ranks of a recorded world have come to a standstill, seen from outside: their rings tell."""

import time
from collections.abc import Callable
from pathlib import Path

from rollcall.record import ring_format

_MET = 2  # ops with which a world begins: init, and the barrier of all who have come


def watch(folder: Path, ranks: int, still_s: float) -> Callable[[], bool]:
    """Asked again and again: have all ranks met, and done nothing new for so long?

    How long they take to meet does not count, so that a busy machine is not taken for a deadlock.
    """
    seen: list[int] = []
    since = time.monotonic()

    def is_still() -> bool:
        nonlocal seen, since
        counts = [_count(folder / "rings" / "attempt-0" / f"rank-{rank}.ring") for rank in range(ranks)]
        if counts != seen or min(counts) <= _MET:
            seen, since = counts, time.monotonic()
        return time.monotonic() - since >= still_s

    return is_still


def _count(ring: Path) -> int:
    """How many ops this rank has entered."""
    try:
        with open(ring, "rb") as file:
            file.seek(ring_format.COUNT_AT)
            raw = file.read(ring_format.NUMBER.size)
    except OSError:
        return 0
    return int(ring_format.NUMBER.unpack(raw)[0]) if len(raw) == ring_format.NUMBER.size else 0

"""Noticing that nothing moves: the rings are looked at while the run goes on, and cost their ranks nothing."""

import struct
import time
from pathlib import Path

from rollcall.record import layout

_EVERY_S = 1.0


class HangWatch:
    """Looks at the newest op of every rank: all alike for `after_s`, and a rank waits in one, is a hang."""

    def __init__(self, folder: Path, after_s: float) -> None:
        self._rings, self._after_s = folder / "rings", after_s
        self._next_s = 0.0
        self._seen: dict[Path, bytes] = {}
        self._since_s = time.monotonic()
        self._told: dict[Path, bytes] = {}

    def look(self) -> bool:
        """Whether a hang has just become one; each is told once."""
        now = time.monotonic()
        if now < self._next_s:
            return False
        self._next_s = now + _EVERY_S
        seen = {path: _newest(path) for path in self._rings.glob("attempt-*/rank-*.ring")}
        if seen != self._seen:
            self._seen, self._since_s = seen, now
            return False
        if now - self._since_s < self._after_s or seen == self._told or not any(map(_waits, seen.values())):
            return False
        self._told = seen
        return True


def _newest(path: Path) -> bytes:
    """The newest record of a ring, as it stands; nothing if there is none yet."""
    try:
        with open(path, "rb") as file:
            header = file.read(layout.HEADER_BYTES)
            count, capacity = (
                layout.NUMBER.unpack_from(header, layout.COUNT_AT)[0],
                layout.HEADER.unpack_from(header)[8],
            )
            if not count or not capacity:
                return b""
            place = (count - 1) % capacity
            file.seek(layout.RECORDS_AT + place * layout.RECORD.size)
            return file.read(layout.RECORD.size)
    except (OSError, struct.error):
        return b""


def _waits(record: bytes) -> bool:
    if len(record) < layout.RECORD.size:
        return False
    fields = layout.RECORD.unpack(record)
    completed_ns, waited_ns, op, flags = fields[3], fields[4], fields[5], fields[6]
    is_waiting = not flags & layout.ASYNC or waited_ns > 0
    return op not in layout.EVENTS and not completed_ns and not flags & layout.FAILED and is_waiting

"""Notices that no rank makes progress, by reading the rings of this host during the run."""

import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rollcall.agent.monitoring.sleeping_ranks import SleepingRanks
from rollcall.protocol.messages import Standstill
from rollcall.record import ring_format
from rollcall.runs import rank_rings

_BACK = 32  # records that are read: samples and phases are between the ops


class HangDetector:
    """If the newest ops of all ranks stay as they are for `after_s`, this host is at a standstill. Nothing is said of
    that where fewer than `least_rings` ranks are recorded, or where recording has stopped in one of them. `of_all` puts
    together what this host and others that its launcher does not lead have found."""

    def __init__(
        self,
        folder: Path,
        after_s: float,
        every_s: float = 1.0,
        least_rings: int = 0,
        of_all: Callable[[Standstill], Standstill] = lambda mine: mine,
    ) -> None:
        self._folder, self._after_s, self._every_s, self._least_rings = folder, after_s, every_s, least_rings
        self._of_all = of_all
        self._next_s = 0.0
        self._seen: dict[Path, tuple[bytes, ...]] = {}
        self._since_s = time.monotonic()
        self._sent = Standstill(False, False)
        self.sleeping = SleepingRanks()
        self.is_paused = False  # a rank stands in a debugger, and others wait for it

    def check(self, attempt: int, pids: Iterable[int] = ()) -> Standstill | None:
        """Whether the ranks, which are these processes, are at a standstill, if that has changed."""
        now = time.monotonic()
        if now < self._next_s:
            return None
        self._next_s = now + self._every_s
        seen = {path: newest_ops(path) for path in rank_rings(self._folder, attempt)}
        if seen != self._seen or self.is_paused:
            self._seen, self._since_s = seen, now
        is_still = now - self._since_s >= self._after_s and len(seen) >= self._least_rings
        is_still = is_still and not any(map(_has_stopped, seen))
        is_waiting = is_still and any(map(waits, seen.values()))
        slept_s = self.sleeping.slept_s(pids)  # in each check: it counts from the first one
        is_asleep = is_still and not is_waiting and slept_s >= self._after_s
        still = self._of_all(Standstill(is_still, is_waiting, is_asleep))
        if still == self._sent:
            return None
        self._sent = still
        return still


def newest_ops(path: Path) -> tuple[bytes, ...]:
    """The newest ops of a ring. Several: in a batch, the one that is waited for need not be the last."""
    found = []
    try:
        with open(path, "rb") as file:
            header = file.read(ring_format.HEADER_BYTES)
            (count,) = ring_format.NUMBER.unpack_from(header, ring_format.COUNT_AT)
            names_bytes, capacity = ring_format.layout_of(header)
            for number in range(count, max(0, count - _BACK), -1):
                place = (number - 1) % capacity
                file.seek(ring_format.NAMES_AT + names_bytes + place * ring_format.RECORD.size)
                record = file.read(ring_format.RECORD.size)
                if ring_format.RECORD.unpack(record)[5] not in ring_format.EVENTS:
                    found.append(record)
    except (OSError, struct.error):
        pass
    return tuple(found)


def _has_stopped(path: Path) -> bool:
    """Whether its rank is no longer recorded."""
    try:
        with open(path, "rb") as file:
            file.seek(ring_format.STOPPED_AT)
            return file.read(1) > b"\0"
    except OSError:
        return True


def waits(records: tuple[bytes, ...]) -> bool:
    """Whether the rank is blocked in one of them."""
    return any(ring_format.blocks(ring_format.RECORD.unpack(record)) for record in records)

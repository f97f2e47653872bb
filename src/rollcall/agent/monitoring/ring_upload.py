"""Sends new records of this host's rings to a launcher that does not see this disk, while somebody watches the run.

If a rank records faster than this sends, records are missing until the attempt is over; then the whole ring is sent.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from rollcall.protocol.channel import Channel
from rollcall.protocol.messages import File
from rollcall.record import ring_format
from rollcall.runs import TRAINING, rank_rings

_MOST_BYTES = 256 << 10  # of all ranks of this host, in one answer: about a second on a slow connection
_CHUNK_BYTES = 32 << 10  # other messages can be sent between two chunks
_LEAST_RECORDS = 64  # of each rank, however many there are: the ops that may be in flight
_LOOK_BACK = 64  # records that may have been open when they were sent


@dataclass
class _Sent:
    """How far one ring is known to the launcher."""

    count: int = 0
    names_end: int = 0


class RingUpload:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent: dict[Path, _Sent] = {}

    def send(self, channel: Channel, attempt: int) -> None:
        paths = rank_rings(self._folder, attempt)
        for path in paths:
            self._send_one(channel, path, _MOST_BYTES // len(paths))
        with contextlib.suppress(FileNotFoundError):  # no Trainer runs here
            channel.send(File(TRAINING, 0, (self._folder / TRAINING).read_bytes()))

    def _send_one(self, channel: Channel, path: Path, most_bytes: int) -> None:
        sent = self._sent.setdefault(path, _Sent())
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            header = bytearray(os.pread(fd, ring_format.HEADER_BYTES, 0))
            if len(header) < ring_format.HEADER_BYTES or not header.startswith(ring_format.MAGIC):
                return  # so young that it has none
            name = str(path.relative_to(self._folder))
            for begin, size in _parts(header, sent, most_bytes):
                for at in range(begin, begin + size, _CHUNK_BYTES):
                    channel.send(File(name, at, os.pread(fd, min(_CHUNK_BYTES, begin + size - at), at)))
        finally:
            os.close(fd)
        # The header goes last, and counts only what has been sent: a concurrent reader never sees a partial record.
        ring_format.NUMBER.pack_into(header, ring_format.COUNTERS_AT, 0)
        ring_format.NUMBER.pack_into(header, ring_format.NAMES_END_AT, sent.names_end)
        channel.send(File(name, 0, bytes(header)))


def _parts(header: bytearray, sent: _Sent, most_bytes: int) -> list[tuple[int, int]]:
    """Which stretches of a ring are to be sent, and note that they were."""
    names_bytes, capacity = ring_format.layout_of(header)
    (count,) = ring_format.NUMBER.unpack_from(header, ring_format.COUNT_AT)
    (names_end,) = ring_format.NUMBER.unpack_from(header, ring_format.NAMES_END_AT)
    parts = []
    if names_end > sent.names_end:
        size = min(names_end - sent.names_end, max(most_bytes, _LEAST_RECORDS * ring_format.RECORD.size))
        parts.append((ring_format.NAMES_AT + sent.names_end, size))
        sent.names_end += size
    room = max(most_bytes // ring_format.RECORD.size, _LEAST_RECORDS)
    parts += ring_format.stretches(count, min(count - sent.count + _LOOK_BACK, room), capacity, names_bytes)
    sent.count = count
    return parts

"""Writes a ring file. It is memory-mapped: what is written survives the process, whatever signal ends it."""

import _thread
import errno
import json
import mmap
import os
import resource
import struct
from collections import defaultdict
from collections.abc import Hashable, Mapping
from pathlib import Path
from threading import RLock
from time import monotonic_ns, time_ns

from rollcall.record import ring_format
from rollcall.record.own_file import OwnFile

_FLAGS = struct.Struct("<H")
_CHUNK_BYTES = 64 << 10
_RECORD_BYTES = ring_format.RECORD.size
# Looked up once: they are used for every op.
_pack, _pack_number, _SORTS = ring_format.RECORD.pack_into, ring_format.NUMBER.pack_into, ring_format.SORTS
_COUNT_AT, _ISSUED_AT, _COMPLETED_AT = ring_format.COUNT_AT, ring_format.ISSUED_AT, ring_format.COMPLETED_AT
_VERSION, _VERSIONS = struct.Struct("<I"), struct.Struct("<II")  # of a tensor: when it was issued, and waited for
_PAIR_SORT = ring_format.PAIR_SORT


_NOT_FOR_GROUPS = 7 / 8  # of the bytes of names
_SEQ, _PEER = struct.Struct("<I"), struct.Struct("<i")
_Channel = tuple[int, int, int, int]  # group, op, peer, tag


class Ring:
    """One rank's ring of one attempt."""

    def __init__(
        self,
        path: Path,
        *,
        rank: int,
        world_size: int,
        attempt: int,
        host: str,
        size_bytes: int = ring_format.DEFAULT_BYTES,
        names_bytes: int = ring_format.NAMES_BYTES,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._first, self._names_bytes = ring_format.NAMES_AT + names_bytes, names_bytes
        self._capacity = max(16, (size_bytes - self._first) // ring_format.RECORD.size)
        total = self._first + self._capacity * ring_format.RECORD.size
        self._ends = {0: ring_format.NAMES_AT, ring_format.NAMES_AT: self._first, self._first: total}  # of each region
        self._file = OwnFile(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._reserved: dict[int, int] = {}  # by start of a region: up to where it may be written
        try:
            _check_limit(total)
            os.ftruncate(self._file.fd, total)
            self._map = mmap.mmap(self._file.fd, total)
            self._reserve(0, ring_format.NAMES_AT)
        except OSError:  # the disk is full
            self._file.close()
            path.unlink()
            raise
        ring_format.HEADER.pack_into(
            self._map,
            0,
            ring_format.MAGIC,
            ring_format.VERSION,
            ring_format.RECORD.size,
            rank,
            world_size,
            attempt,
            os.getpid(),
            names_bytes,
            self._capacity,
            host.encode()[:64],
            time_ns(),
            monotonic_ns(),
        )
        self._count = 0
        self._records_end = 0
        self._numbers: defaultdict[str, dict[Hashable, int]] = defaultdict(dict)  # by kind and key
        self._names = 0
        self._names_end = 0
        self._unnamed = 0  # how often there was no room for a name
        self._are_names_full = False
        self._counters: dict[tuple[int, int], list[int]] = {}  # by group and op: its place, count, bytes, nanoseconds
        self._seqs: defaultdict[int, int] = defaultdict(int)  # by group: how many collectives there were
        self._channels: defaultdict[_Channel, int] = defaultdict(int)  # how many sends, or receives, each has had
        self.phase = 0  # the current one, which ops are written with
        self._naming = RLock()  # a signal handler may communicate, too
        self._sleep_lock = _thread.allocate_lock()
        self._sleep_lock.acquire()

    def _reserve(self, region: int, end: int) -> None:
        """Allocate disk space before the map is written to: on a full disk, a write to the map would kill the process.

        Zeros are written: after posix_fallocate, ext4 takes 20 ms for the first write to the map.
        """
        reserved = self._reserved.get(region, region)
        if end > reserved:
            wanted = min(max(end - reserved, _CHUNK_BYTES), self._ends[region] - reserved)
            _check_limit(reserved + wanted)
            if os.pwrite(self._file.fd, bytes(wanted), reserved) < wanted:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._reserved[region] = reserved + wanted

    def name(self, kind: str, key: Hashable, value: object) -> int:
        """The number under which records name this value, from 1 on; 0 where there is no room for more names."""
        number = self._numbers[kind].get(key)
        return self._add_name(kind, key, value) if number is None else number

    def _add_name(self, kind: str, key: Hashable, value: object) -> int:
        with self._naming:  # by one thread at a time
            return self._numbers[kind].get(key) or self._write_name(kind, key, value)

    def _write_name(self, kind: str, key: Hashable, value: object) -> int:
        if self._are_names_full and kind != "group":  # the names of a program may change with every op
            return self._leave_unnamed()
        number = self._names + 1
        line = json.dumps([kind, number, value], separators=(",", ":")).encode() + b"\n"
        end = self._names_end + len(line)
        # Without the name of its group, nothing of an op can be compared: groups have the last part for themselves.
        if end > (self._names_bytes if kind == "group" else self._names_bytes * _NOT_FOR_GROUPS):
            self._are_names_full = True
            return self._leave_unnamed()
        start = ring_format.NAMES_AT + self._names_end
        self._reserve(ring_format.NAMES_AT, start + len(line))
        self._map[start : start + len(line)] = line
        self._names_end = end
        ring_format.NUMBER.pack_into(self._map, ring_format.NAMES_END_AT, end)
        self._numbers[kind][key] = self._names = number
        return number

    def _leave_unnamed(self) -> int:
        self._unnamed += 1
        _pack_number(self._map, ring_format.UNNAMED_AT, self._unnamed)
        return 0

    def numbers(self, kind: str) -> Mapping[Hashable, int]:
        """The numbers of all names of a kind, by key. It grows with new names: for callers that look up every op."""
        return self._numbers[kind]

    def add(
        self,
        op: int,
        flags: int = 0,
        group: int = 0,
        *,
        site: int = 0,
        signature: int = 0,
        peer: int = -1,
        tag: int = 0,
        thread: int = 0,
        size_bytes: int = 0,
    ) -> int:
        """`write`, for callers that name a few fields only."""
        return self.write(op, flags, group, site, signature, peer, tag, thread, 0, 0, size_bytes)

    def write(
        self,
        op: int,
        flags: int,
        group: int,
        site: int,
        signature: int,
        peer: int,
        tag: int,
        thread: int,
        reduce: int,
        version: int,
        size_bytes: int,
        phase: int = 0,
    ) -> int:
        """Write a record; returns its offset. An op of a group gets its sequence number, and the current phase. A send
        or receive is numbered by its channel, so that it finds its partner when older ones are overwritten."""
        at = self._first + (self._count % self._capacity) * _RECORD_BYTES
        if at + _RECORD_BYTES > self._records_end:
            self._reserve(self._first, at + _RECORD_BYTES)
            self._records_end = self._reserved[self._first]
        self._count = count = self._count + 1
        if count > self._capacity:
            self._fold(at)
        seq = 0
        if group:
            phase = self.phase
            if _SORTS[op] == _PAIR_SORT:
                seq = self._next_of_channel((group, op, peer, tag))
            else:
                self._seqs[group] = seq = self._seqs[group] + 1
        _pack(
            self._map, at, count, monotonic_ns(), 0, 0, 0, op, flags, group, seq, site, signature, peer, tag, thread,
            phase, reduce, 0, version, version, size_bytes,
        )  # fmt: skip
        # The count is published last, so a concurrent reader never sees a partial record.
        _pack_number(self._map, _COUNT_AT, count)
        return at

    def _next_of_channel(self, channel: _Channel) -> int:
        self._channels[channel] = seq = self._channels[channel] + 1
        return seq

    def received_from(self, at: int, source: int) -> None:
        """Which rank the receive from any rank at `at` has taken a message of."""
        record = dict(zip(ring_format.FIELDS, ring_format.RECORD.unpack_from(self._map, at), strict=True))
        channel = (record["group"], record["op"], source, record["tag"])
        _SEQ.pack_into(self._map, at + ring_format.SEQ_AT, self._next_of_channel(channel))
        _PEER.pack_into(self._map, at + ring_format.PEER_AT, source)

    @property
    def count(self) -> int:
        return self._count

    def newest(self) -> tuple[int, int]:
        """The number of the newest record, and where it is."""
        count = self.count
        return count, self._first + ((count - 1) % self._capacity) * _RECORD_BYTES

    def idle_ns(self) -> int:
        """How long ago the newest record was last written to."""
        _, entered_ns, _, completed_ns, *_ = ring_format.RECORD.unpack_from(self._map, self.newest()[1])
        return monotonic_ns() - int(max(entered_ns, completed_ns))

    def sleep(self, seconds: float, idle_ns: int, is_brief: bool) -> None:
        """The sampler's sleep, until `wake`. Only C++ uses `idle_ns` and `is_brief`: it sleeps on while the rank is not
        idle."""
        self._sleep_lock.acquire(timeout=seconds)

    def wake(self) -> None:
        self._sleep_lock.release()

    def is_blocked(self) -> bool:
        """Whether the newest record is of an op that blocks its rank."""
        return self.count > 0 and ring_format.blocks(ring_format.RECORD.unpack_from(self._map, self.newest()[1]))

    def _fold(self, at: int) -> None:
        """Add the op that is about to be overwritten to its counter."""
        _, entered_ns, _, completed_ns, waited_ns, op, flags, group, *_, size_bytes = ring_format.RECORD.unpack_from(
            self._map, at
        )
        if op in ring_format.EVENTS:
            return
        counter = self._counters.get((group, op))
        if counter is None:
            place = len(self._counters)
            if place == ring_format.MOST_COUNTERS:
                return
            counter = self._counters[group, op] = [place, 0, 0, 0]
            _pack_number(self._map, ring_format.COUNTERS_AT, place + 1)
        since_ns = waited_ns if flags & ring_format.ASYNC else entered_ns
        counter[1] += 1
        counter[2] += size_bytes
        counter[3] += completed_ns - since_ns if completed_ns and since_ns else 0
        ring_format.COUNTER.pack_into(
            self._map, ring_format.HEADER_BYTES + counter[0] * ring_format.COUNTER.size, group, op, 0, *counter[1:]
        )

    def issued(self, at: int, version: int) -> None:
        """The op is under way. torch itself counts some ops as a write to their tensor: that is not the program's."""
        _pack_number(self._map, at + _ISSUED_AT, monotonic_ns())
        _VERSIONS.pack_into(self._map, at + ring_format.VERSION_ISSUED_AT, version, version)

    def waiting(self, at: int, flags: int, version: int) -> None:
        _pack_number(self._map, at + ring_format.WAITED_AT, monotonic_ns())
        _FLAGS.pack_into(self._map, at + ring_format.FLAGS_AT, flags)
        _VERSION.pack_into(self._map, at + ring_format.VERSION_WAITED_AT, version)

    def completed(self, at: int) -> None:
        _pack_number(self._map, at + _COMPLETED_AT, monotonic_ns())

    def set_time(self, at: int, field_at: int, at_ns: int) -> None:
        """A time that is known later: when a GPU came to a moment of an op."""
        _pack_number(self._map, at + field_at, at_ns)

    def failed(self, at: int, flags: int) -> None:
        _FLAGS.pack_into(self._map, at + ring_format.FLAGS_AT, flags | ring_format.FAILED)

    def asked(self) -> int:
        """How often somebody has asked for the stacks of this rank."""
        return int(ring_format.NUMBER.unpack_from(self._map, ring_format.ASKED_AT)[0])

    def note_signal(self, is_programs: bool) -> None:
        """Whether the program itself handles the signal that asks for stacks: nobody may send it then."""
        _pack_number(self._map, ring_format.SIGNAL_AT, is_programs)

    def note_stop(self, why: str) -> None:
        """Recording stops here, and the program continues."""
        text = why.encode(errors="replace")[: ring_format.STOPPED_BYTES]
        self._map[ring_format.STOPPED_AT : ring_format.STOPPED_AT + len(text)] = text


def _check_limit(end: int) -> None:
    """Raises OSError where the user limits the size of files (ulimit -f): to write there would send SIGXFSZ, which ends
    a program that does not ignore it, as Python does by default."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and end > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

"""The format of a ring file. docs/ring.md says it in words; a change here is a new VERSION.

header     one page: which rank wrote it, when it began by two clocks, how many records and names there are
counters   sums over the records that were overwritten, per group and op
names      the values that records name by number (groups, sites, signatures, phases), one JSON line each, append-only
records    of a fixed size; the oldest is overwritten first
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

MAGIC = b"ROLLCALL"
VERSION = 3
# What readers read. Version 2 is the same, but counts the sends and receives of a group, not of each channel.
READABLE = (2, 3)
HEADER_BYTES = 4096
COUNTERS_BYTES = 28 << 10
NAMES_AT = HEADER_BYTES + COUNTERS_BYTES
NAMES_BYTES = 4 << 20
RECORDS_AT = NAMES_AT + NAMES_BYTES
DEFAULT_BYTES = 64 << 20
MEGABYTES = range(1, 64 << 10)
MB_VARIABLE = "ROLLCALL_RING_MB"  # how many megabytes a ring has; --ring-mb sets it

# magic, version, record size, rank, world size, attempt, pid, bytes of names, capacity, host; then one moment by two
# clocks: the wall clock, and the monotonic clock that all records use, since it is never set
HEADER = struct.Struct("<8sIIiiiiQQ64sQQ")
# Values that change, at offsets of their own: records written, bytes of names, counters in use, and how often there was
# no room for a name.
COUNT_AT, NAMES_END_AT, COUNTERS_AT, UNNAMED_AT = 256, 264, 272, 280
# Whether the program itself handles the signal that asks for stacks; and how often somebody has asked for them. The
# latter is the only value that others write.
SIGNAL_AT, ASKED_AT = 2032, 2040
# Why recording stopped before the program did: text, padded with zeros; empty while it goes on. In the header, which is
# on the disk from the beginning: this can be written on a full one.
STOPPED_AT, STOPPED_BYTES = 2048, 1024
NO_STACK = "No stack: "  # in the file of stacks beside a ring: begins a line that says why there is none
SAMPLER_THREAD = "rollcall_sample"  # the name of the recorder's thread in the kernel, which has room for 15 characters
NUMBER = struct.Struct("<Q")
# group, op, padding, count, bytes, nanoseconds that the rank was blocked in them
COUNTER = struct.Struct("<IHHQQQ")
MOST_COUNTERS = COUNTERS_BYTES // COUNTER.size

# Each field with its type in the notation of struct; no gaps between them.
FIELDS = {
    "number": "Q",
    "entered_ns": "Q",
    "issued_ns": "Q",
    "completed_ns": "Q",
    "waited_ns": "Q",  # when wait() was entered
    "op": "H",
    "flags": "H",
    "group": "I",
    "seq": "I",  # counts the collectives of a group; the sends, and the receives, of a channel; 0: it is not known
    "site": "I",
    "signature": "I",
    "peer": "i",  # the other rank of a send or receive, the root of a collective; -1: none
    "tag": "i",
    "thread": "I",
    "phase": "I",
    "reduce": "H",
    "pad": "H",
    "version_issued": "I",
    "version_waited": "I",
    "size_bytes": "Q",
}
RECORD = struct.Struct("<" + "".join(FIELDS.values()))


def _offset(field: str) -> int:
    names = list(FIELDS)
    return struct.calcsize("<" + "".join(FIELDS[name] for name in names[: names.index(field)]))


SEQ_AT, PEER_AT = _offset("seq"), _offset("peer")
ISSUED_AT, COMPLETED_AT, WAITED_AT = _offset("issued_ns"), _offset("completed_ns"), _offset("waited_ns")
FLAGS_AT, VERSION_ISSUED_AT, VERSION_WAITED_AT = _offset("flags"), _offset("version_issued"), _offset("version_waited")

# The kinds of records. Their order is part of the format: add at the end only.
OPS = (
    "",
    "init",
    "new_group",
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "send",
    "recv",
    "exception",  # the program ended with one; signature names its type, site where it was raised
    "exit",  # the program ended; tag is the exit code
    "ddp",  # a DDP module was constructed; the signature has its parameters
    "ddp_forward",  # a phase, too; size_bytes is how many gradients DDP averages after it
    "phase",  # a named part of the program
    "sample",  # where the main thread was while it was in no op, from when to when
    "signal",  # this rank sent one: the tag is the signal, the peer the process
    "destroy",  # it destroyed the default group, and all others with it
)
OP = {name: number for number, name in enumerate(OPS)}
POINT_TO_POINT = (OP["send"], OP["recv"])
EVENTS = tuple(OP[name] for name in ("exception", "exit", "ddp_forward", "phase", "sample", "signal", "destroy"))
# Ops are numbered by their sort: collectives (0) by group; sends and receives (1) by channel, which is group, op, peer
# and tag; events (2) are not.
SORTS = bytes(1 if op in POINT_TO_POINT else 2 if op in EVENTS else 0 for op in range(len(OPS)))
PAIR_SORT = 1
REDUCE_OPS = ("", "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")

NON_MEMBER_GROUP = "not a member"
# Flags. BUCKET: of DDP's reducer. INPUT: waits for data. ELSEWHERE: for data that another thread or process makes.
ASYNC, FAILED, WAITED, BUCKET, INPUT, ELSEWHERE = 1, 2, 4, 8, 16, 32


def sizes(megabytes: int) -> tuple[int, int]:
    """Returns the bytes of a whole ring file, and of its names."""
    return megabytes << 20, (megabytes << 20) // _SHARE_OF_NAMES


_SHARE_OF_NAMES = DEFAULT_BYTES // NAMES_BYTES


def layout_of(header: bytes | bytearray) -> tuple[int, int]:
    """How many bytes of names a ring has room for, and how many records."""
    names_bytes, capacity = HEADER.unpack_from(header)[7:9]
    return names_bytes, capacity


def pid_of(header: bytes) -> int:
    return int(HEADER.unpack_from(header)[6])


def world_size_of(header: bytes) -> int:
    return int(HEADER.unpack_from(header)[4])


def stretches(count: int, newest: int, capacity: int, names_bytes: int) -> Iterator[tuple[int, int]]:
    """The offsets and lengths of the newest records in the file: two of them where they wrap around the end of the
    ring."""
    wanted = min(count, newest, capacity)
    first = (count - wanted) % capacity
    until_end = min(wanted, capacity - first)
    for place, records in ((first, until_end), (0, wanted - until_end)):
        if records:
            yield NAMES_AT + names_bytes + place * RECORD.size, records * RECORD.size


def blocks(record: Sequence[int]) -> bool:
    """Whether an unpacked record is of an op that blocks its rank."""
    _, _, _, completed_ns, waited_ns, op, flags, *_ = record
    return op not in EVENTS and bool(is_blocked(flags, waited_ns, completed_ns))


def is_blocked(flags: Any, waited_ns: Any, completed_ns: Any) -> Any:
    """Whether an op blocks its rank: it is not complete, and its rank is in it or in its wait(). Takes numbers or numpy
    columns."""
    is_in = ((flags & ASYNC) == 0) | (waited_ns > 0)
    return (completed_ns == 0) & ((flags & FAILED) == 0) & is_in

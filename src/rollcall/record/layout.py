"""The format of a ring file. docs/ring.md says it in words; a change here is a new VERSION.

header     one page: who wrote it, how much, what it does just now
names      what records name by number (groups, sites, signatures, …), one JSON line each, only ever added to
records    of a fixed size, the oldest overwritten first
"""

import struct

MAGIC = b"ROLLCALL"
VERSION = 1
HEADER_BYTES = 4096
NAMES_BYTES = 4 << 20
DEFAULT_BYTES = 64 << 20

# magic, version, record size, rank, world size, attempt, pid, names region, records, host's name
HEADER = struct.Struct("<8sIIiiiiQQ64s")
# Behind it, each at an offset of its own, since they change: records written, bytes of names.
COUNT_AT, NAMES_END_AT = 256, 264
NUMBER = struct.Struct("<Q")

# Each field with its type, as struct has it; no gaps between them.
FIELDS = {
    "number": "Q",
    "entered_ns": "Q",
    "issued_ns": "Q",
    "completed_ns": "Q",
    "waited_ns": "Q",  # when wait() was entered
    "op": "H",
    "flags": "H",
    "group": "I",
    "seq": "I",
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


ISSUED_AT, COMPLETED_AT, WAITED_AT = _offset("issued_ns"), _offset("completed_ns"), _offset("waited_ns")
FLAGS_AT, VERSION_WAITED_AT = _offset("flags"), _offset("version_waited")

# What a record can be. The order is the format: add at the end only.
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
    "exit",  # the program came to its end; tag is the exit code
    "ddp",  # a DDP module was made; the signature has its parameters
    "ddp_forward",
)
OP = {name: number for number, name in enumerate(OPS)}
POINT_TO_POINT = (OP["send"], OP["recv"])
EVENTS = (OP["exception"], OP["exit"], OP["ddp_forward"])
REDUCE_OPS = ("", "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")

STRANGE_GROUP = "not a member"
ASYNC, FAILED, WAITED = 1, 2, 4  # flags

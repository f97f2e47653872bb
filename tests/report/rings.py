"""Rings of runs that never ran, op by op: what is drawn of them is known to the nanosecond."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollcall.explain import rings
from rollcall.record import ring_format

START_NS = 1_000_000_000_000


@dataclass(frozen=True)
class Made:
    """One op; times in milliseconds. `completed_ms` 0: it never came to its end."""

    op: str
    seq: int
    entered_ms: float
    completed_ms: float = 0
    waited_ms: float = 0
    peer: int = -1
    flags: int = 0
    phase: int = 0
    size_bytes: int = 4000


NAMES = (
    ["site", 2, [["/nowhere/train.py", 7, "step<script>"]]],
    ["signature", 3, {"shapes": [[1000]], "dtypes": ["float32"], "device": "cpu", "splits": []}],
    ["phase", 4, "forward"],
    ["phase", 5, "backward"],
)


def write(folder: Path, ranks: Sequence[Iterable[Made]], host: str = "host-1", attempt: int = 0) -> Path:
    """The folder of a run with these ops of each rank."""
    place = folder / "rings" / f"attempt-{attempt}"
    place.mkdir(parents=True)
    group = ["group", 1, {"name": "0", "ranks": [[0, len(ranks) - 1]]}]
    names = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in (group, *NAMES))
    for rank, ops in enumerate(ranks):
        _write_one(place / f"rank-{rank}.ring", rank, len(ranks), list(ops), names, host)
    (folder / "run.json").write_text(json.dumps({"outcome": "ok", "attempts": [{"world_size": len(ranks)}]}))
    return folder


def _write_one(path: Path, rank: int, world_size: int, ops: list[Made], names: bytes, host: str) -> None:
    records = np.zeros(len(ops), dtype=rings.DTYPE)
    for number, op in enumerate(ops):
        record = records[number]
        record["number"], record["op"], record["seq"] = number + 1, ring_format.OP[op.op], op.seq
        for name in ("entered", "completed", "waited"):
            value = getattr(op, f"{name}_ms")
            record[f"{name}_ns"] = START_NS + int(value * 1e6) if value or name == "entered" else 0
        record["group"], record["site"], record["signature"] = 1, 2, 3
        record["peer"], record["flags"], record["size_bytes"] = op.peer, op.flags, op.size_bytes
        record["phase"] = op.phase
    header = bytearray(ring_format.HEADER_BYTES)
    ring_format.HEADER.pack_into(
        header, 0, ring_format.MAGIC, ring_format.VERSION, ring_format.RECORD.size, rank, world_size, 0, 1,
        ring_format.NAMES_BYTES, max(len(ops), 1), host.encode(), START_NS, START_NS,
    )  # fmt: skip
    ring_format.NUMBER.pack_into(header, ring_format.COUNT_AT, len(ops))
    ring_format.NUMBER.pack_into(header, ring_format.NAMES_END_AT, len(names))
    # With holes, as the files of real runs have them.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    for at, data in ((0, bytes(header)), (ring_format.NAMES_AT, names), (ring_format.RECORDS_AT, records.tobytes())):
        os.pwrite(fd, data, at)
    os.close(fd)

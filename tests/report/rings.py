"""Rings of runs that never ran, op by op: as files, or in memory. All that is computed from them is known exactly."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rollcall.explain.loading import rings
from rollcall.explain.loading.cut import as_of
from rollcall.explain.loading.load import Rank, Run
from rollcall.explain.loading.table import Ops, Table
from rollcall.record import ring_format

START_NS = 1_000_000_000_000
FILE = "/nowhere/train.py"


@dataclass(frozen=True)
class FakeOp:
    """One op; times in milliseconds. `completed_ms` 0: it never ended. `group` "": its rank is not in its group."""

    op: str
    seq: int
    entered_ms: float
    completed_ms: float = 0
    waited_ms: float = 0
    peer: int = -1
    flags: int = 0
    phase: str = ""
    size_bytes: int = 4000
    tag: int = 0
    group: str = "0"
    line: int = 7
    shape: tuple[int, ...] = (1000,)
    dtype: str = "float32"
    reduce: str = ""
    thread: int = 0
    issued_ms: float = 0
    was_overwritten: bool = False
    splits: tuple[Any, ...] = ()
    device: str = "cpu"
    objects: int = 0


class _Names:
    """What the records of one ring name by number."""

    def __init__(self, groups: Mapping[str, Sequence[int]]) -> None:
        self._groups = groups
        self.numbers: dict[tuple[str, str], int] = {}
        self._numbers_of_groups: dict[str, int] = {}

    def group(self, name: str) -> int:
        if name not in self._numbers_of_groups:  # of a thousand ranks, once
            told = {"name": name or ring_format.NON_MEMBER_GROUP, "ranks": list(self._groups.get(name, ()))}
            self._numbers_of_groups[name] = self._number("group", told)
        return self._numbers_of_groups[name]

    def site(self, line: int) -> int:
        return self._number("site", [[FILE, line, "step<script>"]])

    def signature(self, op: FakeOp) -> int:
        told = {"shapes": [op.shape], "dtypes": [op.dtype], "device": op.device, "splits": op.splits}
        return self._number("signature", {**told, **({"objects": op.objects} if op.objects else {})})

    def phase(self, name: str) -> int:
        return self._number("phase", name) if name else 0

    def _number(self, kind: str, value: Any) -> int:
        return self.numbers.setdefault((kind, json.dumps(value, separators=(",", ":"))), len(self.numbers) + 1)

    def lines(self) -> list[tuple[str, int, bytes]]:
        return [(kind, number, value.encode()) for (kind, value), number in self.numbers.items()]


def ring(
    rank: int, world_size: int, ops: Iterable[FakeOp], groups: Mapping[str, Sequence[int]], host: str
) -> rings.ReadRing:
    made = list(ops)
    names = _Names(groups)
    names.group("0")
    records = np.zeros(len(made), dtype=rings.DTYPE)
    for number, op in enumerate(made):
        record = records[number]
        record["number"], record["op"], record["seq"] = number + 1, ring_format.OP[op.op], op.seq
        for name in ("entered", "issued", "completed", "waited"):
            value = getattr(op, f"{name}_ms")
            record[f"{name}_ns"] = START_NS + round(value * 1e6) if value or name == "entered" else 0
        for name in ("peer", "flags", "size_bytes", "tag", "thread"):
            record[name] = getattr(op, name)
        record["group"], record["site"] = names.group(op.group), names.site(op.line)
        record["signature"], record["phase"] = names.signature(op), names.phase(op.phase)
        record["reduce"], record["version_waited"] = ring_format.REDUCE_OPS.index(op.reduce), op.was_overwritten
    header = rings.Header(
        rank, world_size, host, 1, len(made), 0, ring_format.NAMES_BYTES, max(len(made), 1), 0, START_NS, START_NS
    )
    return rings.ReadRing(header, records, names.lines(), [])


def run(
    ranks: Sequence[Iterable[FakeOp]],
    groups: Mapping[str, Sequence[int]] | None = None,
    hosts: Sequence[str] | None = None,
    outcome: str = "ok",
    world_size: int | None = None,
    cut_ms: float = 0,
    **ends: Mapping[int, Any],
) -> Run:
    """A run in memory. `cut_ms`: it goes on, and is looked at then. `ends`: facts of load.Rank by rank, such as
    exit_code={1: -9}."""
    made = rings_of(ranks, groups, hosts)
    return run_of(made, outcome, world_size, cut_ms, **ends)


def rings_of(
    ranks: Sequence[Iterable[FakeOp]], groups: Mapping[str, Sequence[int]] | None, hosts: Sequence[str] | None = None
) -> list[rings.ReadRing]:
    all_groups = {"0": range(len(ranks)), **(groups or {})}
    names = hosts or ["host-1"] * len(ranks)
    return [ring(rank, len(ranks), ops, all_groups, names[rank]) for rank, ops in enumerate(ranks)]


def run_of(
    made: list[rings.ReadRing],
    outcome: str,
    world_size: int | None = None,
    cut_ms: float = 0,
    **ends: Mapping[int, Any],
) -> Run:
    cut_ns = START_NS + round(cut_ms * 1e6) if cut_ms else 0
    if cut_ns:
        made = [replace(each, records=as_of(each.records, cut_ns)) for each in made]
    table = Table(sum(len(each.records) for each in made))
    for each in made:
        table.add(each, [])
    table.close()
    found = {}
    for number, each in enumerate(made):
        rows = np.arange(*table.spans[number])
        is_event = table.is_event[rows]
        known = {name: values[number] for name, values in ends.items() if number in values}
        facts = {"host": each.header.host, **known}
        found[number] = Rank(number, Ops(table, rows[~is_event]), Ops(table, rows[is_event]), **facts)
    is_one_clock = len({each.header.host for each in made}) == 1
    size = world_size or len(made)
    return Run("made", 0, outcome, found, size, table, is_one_clock=is_one_clock, cut_ns=cut_ns)


def write(folder: Path, ranks: Sequence[Iterable[FakeOp]], host: str = "host-1", attempt: int = 0) -> Path:
    """The folder of a run with these ops of each rank."""
    place = folder / "rings" / f"attempt-{attempt}"
    place.mkdir(parents=True)
    for rank, ops in enumerate(ranks):
        _write_one(place / f"rank-{rank}.ring", ring(rank, len(ranks), ops, {"0": range(len(ranks))}, host))
    (folder / "run.json").write_text(json.dumps({"outcome": "ok", "attempts": [{"world_size": len(ranks)}]}))
    return folder


def _write_one(path: Path, made: rings.ReadRing) -> None:
    names = b"".join(b'["%s",%d,%s]\n' % (kind.encode(), number, value) for kind, number, value in made.names)
    at, header = made.header, bytearray(ring_format.HEADER_BYTES)
    ring_format.HEADER.pack_into(
        header, 0, ring_format.MAGIC, ring_format.VERSION, ring_format.RECORD.size, at.rank, at.world_size, 0, at.pid,
        at.names_bytes, at.capacity, at.host.encode(), at.wall_ns, at.monotonic_ns,
    )  # fmt: skip
    ring_format.NUMBER.pack_into(header, ring_format.COUNT_AT, at.count)
    ring_format.NUMBER.pack_into(header, ring_format.NAMES_END_AT, len(names))
    # With holes, as the files of real runs have them.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    for start, data in ((0, header), (ring_format.NAMES_AT, names), (ring_format.RECORDS_AT, made.records.tobytes())):
        os.pwrite(fd, bytes(data), start)
    os.close(fd)

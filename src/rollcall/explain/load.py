"""The files of a run → plain values. Whatever a file holds, reading it ends with values or with one sentence."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.errors import UsageError
from rollcall.record import layout

_NUMPY = {"Q": "u8", "I": "u4", "H": "u2", "i": "i4"}


@dataclass(frozen=True)
class Site:
    """A line of the program, and the lines that led there, from the inside outwards."""

    file: str
    line: int
    function: str
    callers: tuple["Site", ...] = ()

    @property
    def chain(self) -> tuple["Site", ...]:
        return self, *self.callers

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class Group:
    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """One communication call on one rank, with everything that a record names by number put in its place."""

    rank: int
    number: int
    op: str
    group: Group
    seq: int
    site: Site | None
    signature: dict[str, Any]
    peer: int
    tag: int
    thread: int
    reduce: str
    is_async: bool
    is_failed: bool
    was_waited_for: bool
    entered_ns: int
    waited_ns: int
    completed_ns: int
    version_issued: int
    version_waited: int
    size_bytes: int

    @property
    def is_blocked(self) -> bool:
        """The rank sits in it: entered, or waited for, and not completed."""
        return not self.completed_ns and not self.is_failed and (not self.is_async or bool(self.waited_ns))

    @property
    def is_strange(self) -> bool:
        """Its rank is not in its group."""
        return self.group.name == layout.STRANGE_GROUP

    @property
    def is_point_to_point(self) -> bool:
        return self.op in ("send", "recv")


@dataclass(frozen=True)
class Rank:
    """What is known of one rank: its ops in order, and how it ended."""

    number: int
    ops: tuple[Op, ...]
    dropped: int = 0  # older ops that the ring no longer has
    exit_code: int | None = None  # None: it did not end by itself
    cause: str = ""  # what is known of its end beyond the exit code
    error: str = ""  # the exception that its program ended with
    error_site: Site | None = None
    exit_site: Site | None = None  # where it called sys.exit
    ended_ns: int = 0
    stack: tuple[Site, ...] = ()  # where its main thread was when it was asked last, innermost first

    @property
    def blocked(self) -> Op | None:
        """The op it sits in."""
        return next((op for op in reversed(self.ops) if op.is_blocked), None)


@dataclass(frozen=True)
class Run:
    """One attempt of a run."""

    name: str
    attempt: int
    outcome: str
    ranks: dict[int, Rank]
    world_size: int
    problems: tuple[str, ...] = field(default=())  # what could not be read


def load(folder: Path, attempt: int | None = None) -> Run:
    """The newest attempt of a run, or the one that is asked for."""
    facts = _facts(folder)
    attempts = facts.get("attempts", [])
    rings = {int(path.name.removeprefix("attempt-")): path for path in sorted((folder / "rings").glob("attempt-*"))}
    if not rings:
        raise UsageError(
            f"{folder.name} has no rings, so there is nothing to explain: it ran with --no-record, with fresh"
            f" interpreters, or before its ranks began"
        )
    number = max(rings) if attempt is None else attempt
    if number not in rings:
        raise UsageError(f"{folder.name} has no attempt {number}: it has {', '.join(map(str, sorted(rings)))}")
    told = attempts[number] if number < len(attempts) else {}
    ranks, problems = {}, []
    for path in sorted(rings[number].glob("rank-*.ring")):
        try:
            rank = _rank(path, told)
        except ValueError as error:
            problems.append(f"{path.name}: {error}")
        else:
            ranks[rank.number] = rank
    world_size = int(told.get("world_size") or len(ranks))
    missing = sorted(set(range(world_size)) - set(ranks))
    if missing:
        problems.append(f"no ring of rank {', '.join(map(str, missing))}")
    return Run(folder.name, number, facts.get("outcome", "running"), ranks, world_size, tuple(problems))


def _facts(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "run.json").read_text()))
    except (OSError, ValueError):
        return {}


def _rank(path: Path, told: dict[str, Any]) -> Rank:
    data = np.fromfile(path, dtype=np.uint8, count=layout.HEADER_BYTES)
    header = read_header(data.tobytes())
    records, names = read_records(path, header)
    ops, error, error_site, exit_site, ended_ns = [], "", None, None, 0
    for op in _ops(header.rank, records, names):
        if op.op == "exception":
            error, error_site, ended_ns = _error(op), op.site, op.entered_ns
        elif op.op == "exit":
            ended_ns, exit_site = op.entered_ns, op.site
        else:
            ops.append(op)
    key = str(header.rank)
    code = None if told.get("asked", {}).get(key) else told.get("exit_codes", {}).get(key)
    first = int(records["number"][0]) if len(records) else 1
    cause = str(told.get("causes", {}).get(key, ""))
    return Rank(header.rank, tuple(ops), first - 1, code, cause, error, error_site, exit_site, ended_ns, _stack(path))


_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def _stack(ring: Path) -> tuple[Site, ...]:
    """The stack of the main thread, which gets the signal, from what faulthandler wrote last."""
    try:
        text = ring.with_suffix(".stacks").read_text(errors="replace")
    except OSError:
        return ()
    block = text.rpartition("Current thread")[2].split("\n\n")[0]
    return tuple(Site(file, int(line), function) for file, line, function in _FRAME.findall(block))


def _error(op: Op) -> str:
    return f"{op.signature.get('error', 'an error')}: {op.signature.get('text', '')}".rstrip(": ")


_DTYPE = np.dtype([(name, f"<{_NUMPY[code]}") for name, code in layout.FIELDS.items()])
assert _DTYPE.itemsize == layout.RECORD.size


@dataclass(frozen=True)
class Header:
    rank: int
    count: int
    names_end: int
    names_bytes: int
    capacity: int


def read_header(data: bytes) -> Header:
    """ValueError, in words, for what is no ring of ours."""
    if len(data) < layout.HEADER_BYTES:
        raise ValueError("it is cut off within its header")
    magic, version, size, rank, _, _, _, names_bytes, capacity, _ = layout.HEADER.unpack_from(data)
    if magic != layout.MAGIC:
        raise ValueError("it is not a ring of rollcall")
    if version > layout.VERSION or size != layout.RECORD.size:
        raise ValueError(f"its format is version {version}, and this rollcall reads up to {layout.VERSION}")
    (count,) = layout.NUMBER.unpack_from(data, layout.COUNT_AT)
    (names_end,) = layout.NUMBER.unpack_from(data, layout.NAMES_END_AT)
    if not 0 < capacity < 2**40 or names_bytes > 2**32 or names_end > names_bytes or rank < 0:
        raise ValueError("its header does not fit together")
    return Header(rank, count, names_end, names_bytes, capacity)


def read_records(path: Path, header: Header) -> tuple[NDArray[Any], dict[tuple[str, int], Any]]:
    """The records, oldest first, and what they name."""
    with open(path, "rb") as file:
        file.seek(layout.HEADER_BYTES)
        names = _names(file.read(header.names_end))
        file.seek(layout.HEADER_BYTES + header.names_bytes)
        kept = min(header.count, header.capacity)
        raw = file.read(kept * layout.RECORD.size)
    records = np.frombuffer(raw[: len(raw) // layout.RECORD.size * layout.RECORD.size], dtype=_DTYPE)
    # While a record is written over, or in a damaged file, some numbers are not what they should be.
    fits = (records["number"] > header.count - kept) & (records["number"] <= header.count)
    fits &= records["op"] < len(layout.OPS)
    records = records[fits]
    return records[np.argsort(records["number"], kind="stable")], names


def _names(text: bytes) -> dict[tuple[str, int], Any]:
    names = {}
    for line in text.splitlines():
        try:
            kind, number, value = json.loads(line)
            names[str(kind), int(number)] = value
        except (ValueError, TypeError):
            continue  # of a damaged file, the rest may still be good
    return names


def _site(places: list[list[Any]]) -> Site:
    (file, line, function), *outer = places
    return Site(file, line, function, tuple(Site(*place) for place in outer))


def _ops(rank: int, records: NDArray[Any], names: dict[tuple[str, int], Any]) -> Iterator[Op]:
    sites: dict[int, Site | None] = {0: None}
    groups: dict[int, Group] = {}
    for r in records.tolist():
        row = dict(zip(layout.FIELDS, r, strict=True))
        if row["site"] not in sites:
            value = names.get(("site", row["site"]))
            sites[row["site"]] = _site(value) if value else None
        if row["group"] not in groups:
            value = names.get(("group", row["group"])) or {"name": "?", "ranks": []}
            groups[row["group"]] = Group(value["name"], tuple(value["ranks"]))
        flags = row["flags"]
        yield Op(
            rank=rank,
            number=row["number"],
            op=layout.OPS[row["op"]],
            group=groups[row["group"]],
            seq=row["seq"],
            site=sites[row["site"]],
            signature=names.get(("signature", row["signature"])) or {},
            peer=row["peer"],
            tag=row["tag"],
            thread=row["thread"],
            reduce=layout.REDUCE_OPS[row["reduce"]] if row["reduce"] < len(layout.REDUCE_OPS) else "",
            is_async=bool(flags & layout.ASYNC),
            is_failed=bool(flags & layout.FAILED),
            was_waited_for=bool(flags & layout.WAITED),
            entered_ns=row["entered_ns"],
            waited_ns=row["waited_ns"],
            completed_ns=row["completed_ns"],
            version_issued=row["version_issued"],
            version_waited=row["version_waited"],
            size_bytes=row["size_bytes"],
        )

"""One dump → the records of a ring. What other dumps must add (members of a group, when a call ended) comes later."""

import ast
import json
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain import rings
from rollcall.explain.dumps import files
from rollcall.record import ring_format
from rollcall.record.sites import is_users_file

_BATCH = "batch"  # the entry that ends a batch: it alone has the state of the ops before it
# The names that backends give their ops, without the backend. What is not here is left out, and counted.
_NAMES = {
    "all_reduce": ("all_reduce", "allreduce", "allreduce_coalesced", "all_reduce_sparse", "all_reduce_coalesced"),
    "broadcast": ("broadcast", "_broadcast_oop"),
    "reduce": ("reduce", "_reduce_oop"),
    "all_gather": (
        *("all_gather", "allgather", "_all_gather_base", "_allgather_base", "all_gather_single", "all_gather_v"),
        *("allgather_coalesced", "all_gather_into_tensor_coalesced", "allgather_into_tensor_coalesced"),
    ),
    "gather": ("gather",),
    "scatter": ("scatter",),
    "reduce_scatter": (
        *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_v"),
        "reduce_scatter_tensor_coalesced",
    ),
    "all_to_all": ("all_to_all", "alltoall", "all_to_all_single", "all_to_all_v_single", "alltoall_base"),
    "barrier": ("barrier", "all_reduce_barrier"),
    "send": ("send",),
    "recv": ("recv", "recvAnysource", "recv_any_source"),
    "new_group": ("split",),
    _BATCH: ("coalesced", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced"),
}
_OP = {name: op for op, names in _NAMES.items() for name in names}
# A batch of these is one call of the program: nccl makes several ops of a gather whose sizes differ.
_BATCH_OF = {"ALLGATHER_coalesced": "all_gather", "REDUCE_SCATTER_coalesced": "reduce_scatter"}
_DTYPES = {
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Long": ("int64", 8),
    "Int": ("int32", 4),
    "Short": ("int16", 2),
    "Char": ("int8", 1),
    "Byte": ("uint8", 1),
    "Bool": ("bool", 1),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
}
_PEERS = re.compile(r"(\d+)(?:->|<-)(\d+|\?)")
_MOST_FRAMES = 8
# Frames of Python and torch, on whatever machine the dump was made.
_NOT_USERS = re.compile(
    r"/lib/python3|/torch/(distributed|nn|autograd|utils|_|optim)|\.(cpp|cc|h|hpp|cu|so)\b|^\?\?|^<"
)


@dataclass
class Dump:
    """One dump. `records` are those of a ring, but for groups, which are numbers of `groups`, and for peers, which are
    ranks of the group."""

    path: Path
    rank: int
    backend: str = ""
    version: str = ""
    world_size: int = 0  # 0: not known
    groups: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)  # name and ranks; no ranks: not known
    sites: list[bytes] = field(default_factory=list)
    signatures: list[bytes] = field(default_factory=list)
    records: NDArray[Any] = field(default_factory=lambda: np.zeros(0, dtype=rings.DTYPE))
    is_done: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    timeout_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    was_given_up: bool = False  # torch says that an op has timed out
    unknown: Counter[str] = field(default_factory=Counter)  # ops whose name is not known
    written_ns: int = 0  # by the time of the file

    @property
    def last_ns(self) -> int:
        """Its last known moment."""
        times = (self.records["entered_ns"], self.records["completed_ns"])
        return max(int(each.max(initial=0)) for each in times)

    @property
    def has_times_of_ends(self) -> bool:
        return bool(self.records["completed_ns"].any()) or not self.is_done.any()


def read(path: Path) -> Dump:
    """ValueError with the reason if it is no whole dump."""
    content = files.read(path)
    try:
        return _dump(path, content)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"its content is not that of a dump ({type(error).__name__}: {error})") from error


def _dump(path: Path, content: dict[str, Any]) -> Dump:
    members = _members(content.get("pg_config") or {})
    rank = files.rank_in(path.name)
    if rank is None:
        rank = _rank_by_groups(members)
    if rank is None:
        raise ValueError("its name has no number, so it is not known which rank wrote it")
    reader = _Entries(members)
    for entry in content.get("entries") or []:
        reader.add(entry)
    version, written_ns = str(content.get("version", "")), path.stat().st_mtime_ns
    return reader.dump(Dump(path, rank, version=version, world_size=_world_size(content), written_ns=written_ns))


def _world_size(content: dict[str, Any]) -> int:
    """By the group that torch makes first; 0 if its ranks are not told."""
    groups = (content.get("pg_config") or {}).values()
    worlds = [_members({"": group}).get("", ()) for group in groups if group.get("desc") == "default_pg"]
    return max(map(len, worlds), default=0)


def _members(pg_config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """By name of the group: its ranks. Gloo of torch before 2.15 leaves them out."""
    found = {}
    for name, group in pg_config.items():
        ranks = group.get("ranks", ())
        listed = ast.literal_eval(ranks) if isinstance(ranks, str) else ranks
        if listed:
            found[str(name)] = tuple(sorted(int(rank) for rank in listed))
    return found


def _rank_by_groups(members: dict[str, tuple[int, ...]]) -> int | None:
    """A rank is in all its groups: if they have one rank in common, it is that."""
    common = set.intersection(*map(set, members.values())) if members else set()
    return common.pop() if len(common) == 1 else None


_COLUMNS = ("number", "entered_ns", "completed_ns", "op", "group", "seq", "site", "signature", "peer", "thread")


class _Entries:
    """Turns entries into rows; what many have in common is turned once."""

    def __init__(self, members: dict[str, tuple[int, ...]]) -> None:
        self._members = members
        self._rows: list[list[int]] = []  # of _COLUMNS
        self._size_bytes: list[int] = []
        self._is_done: list[bool] = []
        self._timeout_ns: list[int] = []
        self._groups: dict[tuple[str, str], int] = {}
        self._sites: dict[bytes, int] = {}
        self._site_of: dict[tuple[int, ...], int] = {}  # by the identities of frames, which entries share
        self._signatures: dict[bytes, tuple[int, int]] = {}  # its number, and the size in bytes
        self._signature_of: dict[str, tuple[int, int]] = {}
        self._parsed: dict[str, tuple[str, str, int]] = {}  # by the name of an op: backend, op, peer
        self._threads: dict[Any, int] = {}
        self._backend = ""
        self._was_given_up = False
        self._unknown: Counter[str] = Counter()

    def add(self, entry: dict[str, Any]) -> None:
        name = entry["profiling_name"]
        backend, op, peer = self._parsed.get(name) or self._parse(name)
        if op not in ring_format.OP and op != _BATCH:
            self._unknown[name] += 1
            return
        self._backend = self._backend or backend
        is_p2p = op in ("send", "recv") or (op == _BATCH and bool(entry.get("is_p2p")))
        group = self._group(entry["process_group"])
        seq = entry["p2p_seq_id" if is_p2p else "collective_seq_id"]
        completed_ns = entry.get("time_discovered_completed_ns") or 0
        # Gloo's entries never become "completed": an op that has ended is "retired" there.
        is_done = completed_ns > 0 or entry.get("state") == "completed"
        is_retired = bool(entry.get("retired"))
        if backend == "nccl" and is_retired and not is_done:
            self._was_given_up = True
        is_done = is_done or (is_retired and backend != "nccl")
        if op == _BATCH:
            self._end_batch(name, group, seq, is_p2p, is_done, completed_ns)
            return
        signature, size_bytes = self._signature(op, backend, entry)
        self._rows.append(
            [
                entry["record_id"] + 1,
                entry["time_created_ns"],
                completed_ns,
                ring_format.OP[op],
                group,
                seq,
                self._site(entry.get("frames")),
                signature,
                peer,
                self._thread(entry),
            ]
        )
        self._size_bytes.append(size_bytes)
        self._is_done.append(is_done)
        self._timeout_ns.append(int(entry.get("timeout_ms") or 0) * 1_000_000)

    def _parse(self, name: str) -> tuple[str, str, int]:
        """Such as `nccl:send 0->1`, by ranks of the group; the sender is not known in `gloo:recv 0<-?`."""
        backend, _, rest = name.partition(":")
        op, _, peers = rest.partition(" ")
        found = _PEERS.match(peers)
        peer = int(found[2]) if found and found[2] != "?" else -1
        parsed = self._parsed[name] = (backend, _OP.get(op, "unknown"), peer)
        return parsed

    def _group(self, named: Any) -> int:
        name, described = (str(part) for part in tuple(named)[:2])
        return self._groups.setdefault((name, described), len(self._groups))

    def _end_batch(self, name: str, group: int, seq: int, is_p2p: bool, is_done: bool, completed_ns: int) -> None:
        """The ops of a batch have no state of their own. Several collectives of a batch are one call."""
        first = len(self._rows)
        while first and self._is_member(self._rows[first - 1], group, seq, is_p2p):
            first -= 1
        for row in self._rows[first:]:
            row[2] = completed_ns
        self._is_done[first:] = [is_done] * (len(self._rows) - first)
        if not is_p2p and first < len(self._rows):
            op = _BATCH_OF.get(name.partition(":")[2])
            self._rows[first][3] = ring_format.OP[op] if op else self._rows[first][3]
            for column in (self._size_bytes, self._is_done, self._timeout_ns, self._rows):
                del column[first + 1 :]

    @staticmethod
    def _is_member(row: list[int], group: int, seq: int, is_p2p: bool) -> bool:
        return row[4:6] == [group, seq] and (row[3] in ring_format.POINT_TO_POINT) == is_p2p

    def _signature(self, op: str, backend: str, entry: dict[str, Any]) -> tuple[int, int]:
        side = "output" if op in ("scatter", "recv") else "input"
        if not entry.get(f"{side}_sizes"):
            side = "input" if side == "output" else "output"
        shapes, dtypes = entry.get(f"{side}_sizes") or [], entry.get(f"{side}_dtypes") or []
        key = f"{backend}{shapes}{dtypes}"
        found = self._signature_of.get(key)
        if found is None:
            found = self._signature_of[key] = self._new_signature(backend, shapes, dtypes)
        return found

    def _new_signature(self, backend: str, shapes: list[list[int]], dtypes: list[str]) -> tuple[int, int]:
        known = [_DTYPES.get(str(dtype), (str(dtype).lower(), 1)) for dtype in dtypes]
        size_bytes = sum(math.prod(shape) * size for shape, (_, size) in zip(shapes, known, strict=False))
        told = {
            "shapes": shapes,
            "dtypes": [name for name, _ in known],
            "device": "cpu" if backend == "gloo" else "cuda",
            "splits": [],
        }
        value = json.dumps(told).encode()
        return self._signatures.setdefault(value, (len(self._signatures) + 1, size_bytes))

    def _site(self, frames: list[dict[str, Any]] | None) -> int:
        if not frames:
            return 0
        key = tuple(map(id, frames))
        found = self._site_of.get(key)
        if found is None:
            found = self._site_of[key] = self._new_site(frames)
        return found

    def _new_site(self, frames: list[dict[str, Any]]) -> int:
        users = [
            [str(frame["filename"]), int(frame["line"]), str(frame["name"])]
            for frame in frames
            if is_users_file(str(frame["filename"])) and not _NOT_USERS.search(str(frame["filename"]))
        ]
        return self._sites.setdefault(json.dumps(users[:_MOST_FRAMES]).encode(), len(self._sites) + 1) if users else 0

    def _thread(self, entry: dict[str, Any]) -> int:
        """The first is the main thread; autograd's threads work while that waits for them."""
        if str(entry.get("thread_name", "")).startswith("pt_autograd"):
            return 0
        return self._threads.setdefault(entry.get("thread_id"), len(self._threads))

    def dump(self, blank: Dump) -> Dump:
        kept = _without_repeats(self._rows)
        records = np.zeros(len(kept), dtype=rings.DTYPE)
        for name, column in zip(_COLUMNS, zip(*(self._rows[place] for place in kept), strict=True), strict=False):
            records[name] = column
        records["size_bytes"] = [self._size_bytes[place] for place in kept]
        blank.groups = [(_group_name(*named), self._members.get(named[0], ())) for named in self._groups]
        blank.backend, blank.was_given_up, blank.unknown = self._backend, self._was_given_up, self._unknown
        blank.sites, blank.signatures = list(self._sites), list(self._signatures)
        blank.records = records
        blank.is_done = np.array([self._is_done[place] for place in kept], dtype=np.bool_)
        blank.timeout_ns = np.array([self._timeout_ns[place] for place in kept], dtype=np.int64)
        return blank


def _group_name(name: str, described: str) -> str:
    return name if described in ("", "undefined", "default_pg") else f"{name} ({described})"


def _without_repeats(rows: list[list[int]]) -> list[int]:
    """The places of rows to keep: of the collectives of a batch that has not ended yet, the first."""
    kept, seen = [], (-1, -1)
    for place, row in enumerate(rows):
        is_p2p = row[3] in ring_format.POINT_TO_POINT
        if is_p2p or (row[4], row[5]) != seen:
            kept.append(place)
        if not is_p2p:
            seen = (row[4], row[5])
    return kept

"""Writes dumps as torch's Flight Recorder does, for as many ranks as a test wants.

The fields are those that nccl and gloo write in torch 2.9 to 2.15 (version 2.10 of the format); times in milliseconds.
"""

import json
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_NS = 1_794_000_000_000_000_000
FILE = "/nowhere/train.py"
TORCH = "/usr/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"


@dataclass(frozen=True)
class Entry:
    """One op. `done_ms` 0: it is not over. A send or receive names ranks of its group: `send 0->1`, `recv 1<-0`."""

    name: str
    seq: int
    created_ms: float
    done_ms: float = 0
    group: str = "0"
    shape: Sequence[int] = (1000,)
    dtype: str = "Float"
    line: int = 7
    backend: str = "nccl"
    thread: str = "1"
    is_p2p: bool | None = None  # None: by its name
    is_retired: bool | None = None  # None: when it is over
    timeout_ms: int = 600_000
    took_ms: float = 0  # on the device, with TORCH_NCCL_ENABLE_TIMING=1


def content(
    entries: Sequence[Entry], groups: Mapping[str, Sequence[int]], first_id: int = 0, version: str = "2.10"
) -> dict[str, Any]:
    """What a dump holds. `groups`: name and ranks of the groups that its rank is in; "0" is the world."""
    config = {
        name: {"name": name, "desc": _description(name), "ranks": str(list(ranks))} for name, ranks in groups.items()
    }
    return {
        "version": version,
        "pg_config": config,
        "comm_lib_version": "2.27.5",
        "pg_status": {},
        "entries": [_entry(entry, number) for number, entry in enumerate(entries, first_id)],
    }


def _description(group: str) -> str:
    return "default_pg" if group == "0" else "undefined"


def _entry(entry: Entry, number: int) -> dict[str, Any]:
    is_p2p = entry.name.startswith(("send", "recv")) if entry.is_p2p is None else entry.is_p2p
    is_gloo = entry.backend == "gloo"
    state = "completed" if entry.done_ms and not is_gloo else "scheduled"
    sizes = [] if entry.name == "coalesced" else [list(entry.shape)]
    return {
        "frames": [_frame(TORCH, 3245, "all_reduce"), _frame(FILE, entry.line, "step"), _frame(FILE, 99, "<module>")],
        "record_id": number,
        "pg_id": 0,
        "process_group": (entry.group, _description(entry.group)),
        "thread_name": "python",
        "thread_id": entry.thread,
        "collective_seq_id": 0 if is_p2p else entry.seq,
        "p2p_seq_id": entry.seq if is_p2p else 0,
        "op_id": number,
        "profiling_name": f"{entry.backend}:{entry.name}",
        "time_created_ns": _ns(entry.created_ms),
        "input_sizes": sizes,
        "input_dtypes": [entry.dtype] * len(sizes),
        "output_sizes": sizes,
        "output_dtypes": [entry.dtype] * len(sizes),
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": _ns(entry.done_ms) if state == "completed" else None,
        "retired": bool(entry.done_ms) if entry.is_retired is None else entry.is_retired,
        "timeout_ms": entry.timeout_ms,
        "is_p2p": is_p2p,
        **({"duration_ms": entry.took_ms} if entry.took_ms else {}),
    }


def _frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


def _ns(ms: float) -> int:
    return START_NS + int(ms * 1e6)


def write(
    folder: Path,
    ranks: Mapping[int, Sequence[Entry]],
    groups: Mapping[str, Sequence[int]] | None = None,
    *,
    world_size: int = 0,
    prefix: str = "nccl_trace_rank_",
    after_s: float = 600,
    first_ids: Mapping[int, int] | None = None,
) -> Path:
    """A dump of each rank, written `after_s` seconds after the start: the default is the timeout of a group."""
    folder.mkdir(parents=True, exist_ok=True)
    all_groups = {"0": range(world_size or len(ranks)), **(groups or {})}
    for rank, entries in ranks.items():
        mine = {name: members for name, members in all_groups.items() if rank in members}
        path = folder / f"{prefix}{rank}"
        path.write_bytes(pickle.dumps(content(entries, mine, (first_ids or {}).get(rank, 0)), protocol=2))
        set_time(path, after_s)
    return folder


def set_time(path: Path, after_s: float) -> None:
    at_ns = START_NS + int(after_s * 1e9)
    os.utime(path, ns=(at_ns, at_ns))


def as_json(data: dict[str, Any]) -> bytes:
    """As torch writes JSON: without stacks, and with 0 for a time that is not known."""
    entries = [
        {name: (0 if value is None else value) for name, value in entry.items() if name != "frames"}
        for entry in data["entries"]
    ]
    return json.dumps({**data, "entries": entries}).encode()

"""What torch.profiler has written beside the rings, on the clock of the run: `rollcall profile` has it written."""

import contextlib
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollcall.explain.loading.load import clocks
from rollcall.explain.loading.table import on_one_clock
from rollcall.runs import read_facts, ring_folders

_FILE = re.compile(r"rank-(\d+)-\d+\.profile\.json\.gz")
_SHOWN = ("X", "s", "t", "f")  # slices, and arrows from a call to its kernel


@dataclass(frozen=True)
class RankProfile:
    rank: int
    events: list[dict[str, Any]]  # of Chrome's format; "ts" is in ns by the clock of the ops
    threads: dict[tuple[Any, Any], str]  # names, by process and thread


def read_all(folder: Path, attempt: int) -> Iterator[RankProfile]:
    """Those of an attempt; files that are damaged are left out."""
    known = clocks(read_facts(folder))
    for path in sorted(ring_folders(folder).get(attempt, folder).glob("*.profile.json.gz")):
        with contextlib.suppress(OSError, EOFError, ValueError, KeyError):
            yield _read(path, known)


def _read(path: Path, known: list[Any]) -> RankProfile:
    rank = int(_FILE.fullmatch(path.name)[1])  # type: ignore[index]
    with gzip.open(path, "rt") as file:
        trace = json.load(file)
    found = [event for event in trace["traceEvents"] if event.get("ph") in _SHOWN and "ts" in event]
    before_ns = int(trace.get("baseTimeNanoseconds", 0)) - int(trace["rollcall"]["ahead_ns"])
    times = np.array([before_ns + round(event["ts"] * 1000) for event in found], dtype=np.int64)
    if rank < len(known) and known[rank]:
        times = on_one_clock(times, known[rank])
    named = {
        _thread(event): event["args"]["name"] for event in trace["traceEvents"] if event.get("name") == "thread_name"
    }
    return RankProfile(rank, [{**event, "ts": int(at)} for event, at in zip(found, times, strict=True)], named)


def _thread(event: dict[str, Any]) -> tuple[Any, Any]:
    return event.get("pid"), event.get("tid")

"""A timeline → what a page holds of it: columns of numbers as short texts, and what the numbers mean.

Each column is written as differences where that makes it smaller, byte by byte in planes (all lowest bytes, then all
second ones, …), and deflated: browsers inflate that by themselves. assets/columns.js is the other side.
"""

import base64
import zlib
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from rollcall.protocol.exit_codes import how_it_ended
from rollcall.runs import facts_of_attempt
from rollcall.timeline import model
from rollcall.timeline.model import Bars, Timeline


class Column(TypedDict):
    length: int
    planes: int  # bytes of each number
    differences: bool
    data: str


def pack(values: NDArray[Any], differences: bool = False) -> Column:
    """Whole numbers from 0 to 2**48; with `differences`, what each adds to the one before, of any sign."""
    numbers = values.astype(np.int64)
    if differences:
        steps = np.diff(numbers, prepend=0)
        numbers = (steps << 1) ^ (steps >> 63)  # the sign becomes the lowest bit: small steps stay small
    largest = int(numbers.max()) if len(numbers) else 0
    planes = max(1, (largest.bit_length() + 7) // 8)
    raw = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :planes]
    return {
        "length": len(values),
        "planes": planes,
        "differences": differences,
        "data": deflate(np.ascontiguousarray(raw.T).tobytes()),
    }


def deflate(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()


def encode(timeline: Timeline, facts: dict[str, Any]) -> dict[str, Any]:
    """The columns, packed, and what their numbers mean."""
    ranks = sorted({rank for attempt in timeline.attempts for rank in attempt.evidence.run.ranks})
    lane_of = np.zeros(max(ranks, default=0) + 1, dtype=np.int64)
    lane_of[ranks] = np.arange(len(ranks))
    descriptions: list[dict[str, Any]] = []
    parts: dict[str, list[NDArray[np.int64]]] = {name: [] for name in ("lane", *_COLUMNS)}
    calls = 0
    for attempt in timeline.attempts:
        bars = attempt.bars
        parts["lane"].append(lane_of[bars.rank])
        parts["start"].append((bars.begin_ns - timeline.zero_ns) // 1000)
        parts["unblocked"].append((bars.begin_ns - bars.entered_ns) // 1000)
        parts["wait"].append(bars.wait_ns // 1000)
        parts["busy"].append(bars.busy_ns // 1000)
        parts["kind"].append(attempt.kinds.number + len(descriptions))
        parts["call"].append(_by_time(bars) + calls)
        descriptions += attempt.kinds.descriptions
        calls += int(bars.call.max()) + 1 if len(bars.call) else 0
    whole = {name: np.concatenate(each) if each else np.zeros(0, dtype=np.int64) for name, each in parts.items()}
    order = np.lexsort((whole["start"], whole["lane"])) if len(timeline.attempts) > 1 else slice(None)
    lanes = whole["lane"][order]
    return {
        "columns": {name: pack(whole[name][order], differences=name in _AS_DIFFERENCES) for name in _COLUMNS},
        "meaning": {
            "first": np.searchsorted(lanes, np.arange(len(ranks) + 1)).tolist(),
            "lanes": _lanes(timeline, ranks),
            "kinds": descriptions,
            "phases": _phases(timeline),
            "attempts": [
                {"number": attempt.number, "begin": _s(attempt.begin_ns, timeline)} for attempt in timeline.attempts
            ],
            "deaths": _deaths(timeline, facts, lane_of),
            "duration": timeline.seconds,
        },
        "samples": _samples(timeline),
    }


_COLUMNS = ("start", "unblocked", "wait", "busy", "kind", "call")
_AS_DIFFERENCES = ("start", "call")


def _samples(timeline: Timeline) -> dict[str, Any]:
    """Encodes samples in columns, too: there may be fifty a second."""
    found = [model.samples(attempt.evidence) for attempt in timeline.attempts]
    places: list[str] = []
    parts: dict[str, list[NDArray[np.int64]]] = {name: [] for name in ("rank", "start", "length", "place")}
    for each in found:
        parts["rank"].append(each.rank.astype(np.int64))
        parts["start"].append((each.begin_ns - timeline.zero_ns) // 1000)
        parts["length"].append(each.length_ns // 1000)
        parts["place"].append(each.place + len(places))
        places += each.places
    whole = {name: np.concatenate(each) for name, each in parts.items()}
    kept = np.flatnonzero(whole["start"] >= 0)  # the timeline begins with the first op
    packed = {name: pack(column[kept], differences=name in ("rank", "start")) for name, column in whole.items()}
    return {"columns": packed, "places": places}


def _by_time(bars: Bars) -> NDArray[np.int64]:
    """Calls numbered in order of time: from one op of a rank to the next, the differences are small."""
    if not len(bars.call):
        return bars.call
    first = np.full(int(bars.call.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, bars.call, bars.begin_ns)
    numbers = np.empty(len(first), dtype=np.int64)
    numbers[np.argsort(first, kind="stable")] = np.arange(len(first))
    return numbers[bars.call]


def _s(ns: int, timeline: Timeline) -> float:
    return round((ns - timeline.zero_ns) / 1e9, 6)


def _lanes(timeline: Timeline, ranks: list[int]) -> list[dict[str, Any]]:
    """Per rank: its host, and from when to when it was alive in each attempt."""
    lanes: dict[int, dict[str, Any]] = {rank: {"rank": rank, "host": "", "alive": []} for rank in ranks}
    for attempt in timeline.attempts:
        finish_ns = attempt.bars.begin_ns + attempt.bars.wait_ns + attempt.bars.busy_ns
        edges = np.searchsorted(attempt.bars.rank, [[rank, rank + 1] for rank in ranks])
        for rank, (low, high) in zip(ranks, edges, strict=True):
            found = attempt.evidence.run.ranks.get(rank)
            if found is None:
                continue
            lanes[rank]["host"] = found.host
            if low == high:
                continue
            end = max(int(finish_ns[low:high].max()), found.ended_ns)
            lanes[rank]["alive"].append([_s(int(attempt.bars.entered_ns[low:high].min()), timeline), _s(end, timeline)])
    return list(lanes.values())


def _phases(timeline: Timeline) -> list[dict[str, Any]]:
    found = [band for attempt in timeline.attempts for band in model.bands(attempt.evidence, attempt.bars)]
    return [{"name": b.name, "begin": _s(b.begin_ns, timeline), "end": _s(b.end_ns, timeline)} for b in found]


def _deaths(timeline: Timeline, facts: dict[str, Any], lane_of: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Ranks that died by themselves: the launcher had not told them to end."""
    deaths = []
    for attempt in timeline.attempts:
        attempt_facts = facts_of_attempt(facts, attempt.number)
        for name, code in attempt_facts.get("exit_codes", {}).items():
            wall_ns = attempt_facts.get("ended_ns", {}).get(name)
            rank = int(name)
            if (
                code == 0
                or attempt_facts.get("asked", {}).get(name)
                or not wall_ns
                or rank not in attempt.evidence.run.ranks
            ):
                continue
            at = (wall_ns - timeline.wall_ns) / 1e9
            how = str(attempt_facts.get("causes", {}).get(name) or how_it_ended(code))
            deaths.append({"lane": int(lane_of[rank]), "at": round(min(max(at, 0.0), timeline.seconds), 6), "how": how})
    return deaths

"""What the timeline of a page is given: the bars of all attempts on one axis, in columns, and what they are about."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain import rings
from rollcall.explain.evidence import View
from rollcall.explain.load import clocks
from rollcall.explain.table import Readings
from rollcall.protocol.exit_codes import how_it_ended
from rollcall.record import ring_format
from rollcall.timeline import model
from rollcall.timeline.encode import pack
from rollcall.timeline.model import Bars, Kinds


@dataclass(frozen=True)
class Act:
    """One attempt."""

    attempt: int
    view: View
    bars: Bars
    kinds: Kinds

    @classmethod
    def of(cls, attempt: int, view: View, now_ns: int = 0) -> "Act":
        """Of a run that goes on, ops that are open last until now."""
        bars = model.draw(view, now_ns)
        return cls(attempt, view, bars, model.kinds(view, bars))


@dataclass(frozen=True)
class Scene:
    """All attempts. `zero_ns` is the first op's time, by the recording's clock; `wall_ns` the same by the wall's."""

    acts: list[Act]
    zero_ns: int
    wall_ns: int

    @property
    def seconds(self) -> float:
        return max((max(act.bars.end_ns for act in self.acts) - self.zero_ns) / 1e9, 1e-6)


def stage(acts: list[Act], folder: Path, facts: dict[str, Any], zero_ns: int | None = None) -> Scene:
    begins = [int(act.bars.entered_ns.min()) for act in acts if len(act.bars.row)]
    if zero_ns is None or any(begin < zero_ns for begin in begins):
        zero_ns = min(begins, default=0)
    return Scene(acts, zero_ns, zero_ns + _wall_minus_recording(folder, clocks(facts)))


def _wall_minus_recording(folder: Path, readings: list[Readings]) -> int:
    """Rings use a clock that nobody sets; their headers have one moment by both."""
    for path in sorted((folder / "rings").glob("attempt-*/rank-*.ring")):
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            header = rings.read_header(file.read(ring_format.HEADER_BYTES))
            clock = readings[header.rank] if header.rank < len(readings) else []
            return header.wall_ns - (header.monotonic_ns - (clock[0][1] if clock else 0))
    return 0


def to_page(scene: Scene, facts: dict[str, Any]) -> dict[str, Any]:
    """The columns, packed, and what they mean, told."""
    ranks = sorted({rank for act in scene.acts for rank in act.view.run.ranks})
    lane_of = np.zeros(max(ranks, default=0) + 1, dtype=np.int64)
    lane_of[ranks] = np.arange(len(ranks))
    told_kinds: list[dict[str, Any]] = []
    parts: dict[str, list[NDArray[np.int64]]] = {name: [] for name in ("lane", *_COLUMNS)}
    calls = 0
    for act in scene.acts:
        bars = act.bars
        parts["lane"].append(lane_of[bars.rank])
        parts["start"].append((bars.begin_ns - scene.zero_ns) // 1000)
        parts["lead"].append((bars.begin_ns - bars.entered_ns) // 1000)
        parts["wait"].append(bars.wait_ns // 1000)
        parts["busy"].append(bars.busy_ns // 1000)
        parts["kind"].append(act.kinds.number + len(told_kinds))
        parts["call"].append(_by_time(bars) + calls)
        told_kinds += act.kinds.told
        calls += int(bars.call.max()) + 1 if len(bars.call) else 0
    whole = {name: np.concatenate(each) if each else np.zeros(0, dtype=np.int64) for name, each in parts.items()}
    order = np.lexsort((whole["start"], whole["lane"])) if len(scene.acts) > 1 else slice(None)
    lanes = whole["lane"][order]
    return {
        "columns": {name: pack(whole[name][order], differences=name in _STEPS) for name in _COLUMNS},
        "told": {
            "first": np.searchsorted(lanes, np.arange(len(ranks) + 1)).tolist(),
            "lanes": _lanes(scene, ranks),
            "kinds": told_kinds,
            "phases": _phases(scene),
            "attempts": [{"number": act.attempt, "begin": _s(_begin(act), scene)} for act in scene.acts],
            "deaths": _deaths(scene, facts, lane_of),
            "duration": scene.seconds,
        },
        "samples": _samples(scene),
    }


_COLUMNS = ("start", "lead", "wait", "busy", "kind", "call")
_STEPS = ("start", "call")


def _samples(scene: Scene) -> dict[str, Any]:
    """Columns, too: a rank that computes a lot is seen fifty times a second."""
    found = [model.seen(act.view) for act in scene.acts]
    places: list[str] = []
    parts: dict[str, list[NDArray[np.int64]]] = {name: [] for name in ("rank", "start", "length", "place")}
    for each in found:
        parts["rank"].append(each.rank.astype(np.int64))
        parts["start"].append((each.begin_ns - scene.zero_ns) // 1000)
        parts["length"].append(each.length_ns // 1000)
        parts["place"].append(each.place + len(places))
        places += each.places
    whole = {name: np.concatenate(each) for name, each in parts.items()}
    kept = np.flatnonzero(whole["start"] >= 0)  # the time of a page begins with its first op
    packed = {name: pack(column[kept], differences=name in ("rank", "start")) for name, column in whole.items()}
    return {"columns": packed, "places": places}


def _by_time(bars: Bars) -> NDArray[np.int64]:
    """Calls numbered as they began: from one op of a rank to the next, numbers make small steps."""
    if not len(bars.call):
        return bars.call
    first = np.full(int(bars.call.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, bars.call, bars.begin_ns)
    numbers = np.empty(len(first), dtype=np.int64)
    numbers[np.argsort(first, kind="stable")] = np.arange(len(first))
    return numbers[bars.call]


def _s(ns: int, scene: Scene) -> float:
    return round((ns - scene.zero_ns) / 1e9, 6)


def _begin(act: Act) -> int:
    return int(act.bars.entered_ns.min()) if len(act.bars.row) else 0


def _lanes(scene: Scene, ranks: list[int]) -> list[dict[str, Any]]:
    """Per rank: its host, and from when to when it was there in each attempt."""
    lanes: dict[int, dict[str, Any]] = {rank: {"rank": rank, "host": "", "alive": []} for rank in ranks}
    for act in scene.acts:
        finish_ns = act.bars.begin_ns + act.bars.wait_ns + act.bars.busy_ns
        edges = np.searchsorted(act.bars.rank, [[rank, rank + 1] for rank in ranks])
        for rank, (low, high) in zip(ranks, edges, strict=True):
            found = act.view.run.ranks.get(rank)
            if found is None:
                continue
            lanes[rank]["host"] = found.host
            if low == high:
                continue
            end = max(int(finish_ns[low:high].max()), found.ended_ns)
            lanes[rank]["alive"].append([_s(int(act.bars.entered_ns[low:high].min()), scene), _s(end, scene)])
    return list(lanes.values())


def _phases(scene: Scene) -> list[dict[str, Any]]:
    found = [band for act in scene.acts for band in model.bands(act.view, act.bars)]
    return [{"name": b.name, "begin": _s(b.begin_ns, scene), "end": _s(b.end_ns, scene)} for b in found]


def _deaths(scene: Scene, facts: dict[str, Any], lane_of: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Ranks that ended badly by themselves."""
    deaths = []
    attempts = facts.get("attempts") or []
    for act in scene.acts:
        told = attempts[act.attempt] if 0 <= act.attempt < len(attempts) else {}
        for name, code in told.get("exit_codes", {}).items():
            wall_ns = told.get("ended_ns", {}).get(name)
            rank = int(name)
            if code == 0 or told.get("asked", {}).get(name) or not wall_ns or rank not in act.view.run.ranks:
                continue
            at = (wall_ns - scene.wall_ns) / 1e9
            how = str(told.get("causes", {}).get(name) or how_it_ended(code))
            deaths.append({"lane": int(lane_of[rank]), "at": round(min(max(at, 0.0), scene.seconds), 6), "how": how})
    return deaths

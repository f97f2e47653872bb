"""Writes a run as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing. docs/perfetto.md explains the picture.

The format is Chrome's trace event format, which both read: a host is a process, a thread of a rank is a thread.
"""

import contextlib
import gzip
import json
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from rollcall.errors import cannot_write
from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.load import Rank, load
from rollcall.explain.loading.table import Op
from rollcall.protocol.exit_codes import how_it_ended
from rollcall.report import profiles
from rollcall.report.profiles import RankProfile
from rollcall.report.slices import Arrow, Lane, Slice, lanes

Event = dict[str, Any]
# Tracks of one rank, in order: its main thread, its phases, its samples, its other threads.
_TRACKS, _PHASES, _SAMPLES = 1 << 17, 1, 2
_PROFILES, _MOST_THREADS = 1 << 16, 1 << 10  # then what torch.profiler has seen, a block of tracks for each time


def export(folder: Path, attempt: int | None, target: Path) -> int:
    """Write the trace; returns the number of ops in it."""
    run = load(folder, attempt)
    try:
        with _open(target) as file:
            file.write('{"displayTimeUnit":"ns","otherData":')
            json.dump({"run": run.name, "attempt": run.attempt, "outcome": run.outcome}, file)
            file.write(',"traceEvents":[\n')
            for number, event in enumerate(events(Evidence(run), profiles.read_all(folder, run.attempt))):
                file.write(",\n" if number else "")
                json.dump(event, file, separators=(",", ":"))
            file.write("\n]}\n")
    except OSError as error:
        raise cannot_write(target, error) from error
    return sum(len(rank.ops) for rank in run.ranks.values())


@contextlib.contextmanager
def _open(target: Path) -> Iterator[TextIO]:
    """Both viewers read gzip, too."""
    if target.suffix == ".gz":
        with gzip.open(target, "wt", encoding="utf-8", compresslevel=3) as file:
            yield file
    else:
        with open(target, "w", encoding="utf-8") as file:
            yield file


def events(evidence: Evidence, profiled: Iterable[RankProfile] = ()) -> Iterator[Event]:
    """All events: those of a track in order of time, an outer slice before the slices in it."""
    tracks = _Tracks(evidence)
    yield from tracks.hosts()
    # Arrows come last: a viewer attaches an arrow to the slices that it has read, of two lanes. They are stored
    # as numbers, since there may be a million.
    arrows = array("q")
    for lane in lanes(evidence):
        yield from tracks.lane(lane)
        for arrow in lane.arrows:
            arrows.extend(tracks.ends_of(arrow))
    for number, at in enumerate(range(0, len(arrows), 5), 1):
        yield from tracks.arrow(number, *arrows[at : at + 5])
    for number, profile in enumerate(profiled):
        yield from tracks.profile(number, profile)


class _Tracks:
    """Knows the process and the tracks of each rank, and when the run began."""

    def __init__(self, evidence: Evidence) -> None:
        ranks = evidence.run.ranks.values()
        self._numbers = {host: number for number, host in enumerate(dict.fromkeys(rank.host for rank in ranks), 1)}
        self._process = {rank.number: self._numbers[rank.host] for rank in ranks}
        self._started_ns = int(evidence.table.entered_ns.min()) if len(evidence.table) else 0

    def hosts(self) -> Iterator[Event]:
        for host, number in self._numbers.items():
            yield _meta("process_name", {"pid": number, "tid": 0}, name=host or "host")
            yield _meta("process_sort_index", {"pid": number, "tid": 0}, sort_index=number)

    def lane(self, lane: Lane) -> Iterator[Event]:
        name = f"rank {lane.rank.number}"
        tracks = {0: (name, lane.threads.get(0, []))}
        tracks |= {_PHASES: (f"{name}, phases", lane.phases), _SAMPLES: (f"{name}, seen", lane.samples)}
        tracks |= {_SAMPLES + t: (f"{name}, thread {t}", slices) for t, slices in lane.threads.items() if t}
        for track, (title, slices) in tracks.items():
            if slices or track == 0:
                place = self._place(lane.rank.number, track)
                yield _meta("thread_name", place, name=title)
                yield _meta("thread_sort_index", place, sort_index=place["tid"])
                yield from (self._slice(each, place) for each in slices)
        for number, each in enumerate(lane.in_flight):
            yield from self._in_flight(each, f"{lane.rank.number}.{number}")
        if (death := _death(lane.rank)) is not None:
            yield self._instant(lane, death)

    def ends_of(self, arrow: Arrow) -> tuple[int, ...]:
        """Time, track of the last, track of the rank that waited."""
        return arrow.last.entered_ns, *self._place_of(arrow.last).values(), *self._place_of(arrow.waiting).values()

    def arrow(self, number: int, at_ns: int, pid: int, tid: int, to_pid: int, to_tid: int) -> Iterator[Event]:
        alike = {"cat": "last", "name": "came last", "id": number, "ts": self._us(at_ns)}
        yield {"ph": "s", **alike, "pid": pid, "tid": tid}
        yield {"ph": "f", "bp": "e", **alike, "pid": to_pid, "tid": to_tid}

    def profile(self, number: int, profile: RankProfile) -> Iterator[Event]:
        """A track for each thread and each stream of a GPU, below those of its rank."""
        if profile.rank not in self._process:
            return
        places: dict[tuple[Any, Any], dict[str, int]] = {}
        for event in profile.events:
            thread = event["pid"], event["tid"]
            if thread not in places:
                place = places[thread] = self._place(profile.rank, _PROFILES + number * _MOST_THREADS + len(places))
                title = profile.threads.get(thread) or f"{event['pid']} {event['tid']}"
                yield _meta("thread_name", place, name=f"rank {profile.rank}, profile: {title}")
                yield _meta("thread_sort_index", place, sort_index=place["tid"])
            named = {"id": f"profile-{number}-{event['id']}"} if "id" in event else {}
            yield {**event, **places[thread], **named, "ts": self._us(event["ts"])}

    def _place_of(self, op: Op) -> dict[str, int]:
        return self._place(op.rank, op.thread + _SAMPLES if op.thread else 0)

    def _place(self, rank: int, track: int) -> dict[str, int]:
        return {"pid": self._process[rank], "tid": (rank + 1) * _TRACKS + track}

    def _us(self, ns: int) -> float:
        return (ns - self._started_ns) / 1000

    def _slice(self, each: Slice, place: dict[str, int]) -> Event:
        is_wait = each.sort == "wait"
        return {
            "ph": "X",
            "name": each.name,
            "cat": each.sort,
            **place,
            "ts": self._us(each.start_ns),
            "dur": (each.end_ns - each.start_ns) / 1000,
            **({"cname": "bad"} if is_wait else {"args": _args(each.op)}),
        }

    def _in_flight(self, each: Slice, number: str) -> Iterator[Event]:
        """An async op from issue to completion, beside the threads, which continue meanwhile."""
        name = f"rank {each.op.rank}: {each.name}"
        alike: Event = {"cat": "in flight", "name": name, "id": number, **self._place_of(each.op)}
        yield {"ph": "b", **alike, "ts": self._us(each.start_ns), "args": _args(each.op)}
        yield {"ph": "e", **alike, "ts": self._us(each.end_ns)}

    def _instant(self, lane: Lane, name: str) -> Event:
        rank = lane.rank
        known = {"error": rank.error, "exit_code": rank.exit_code, "site": str(rank.error_site or "")}
        return {
            "ph": "i",
            "s": "t",
            "cat": "death",
            "name": name,
            **self._place(rank.number, 0),
            "ts": self._us(lane.end_ns),
            "args": {name: value for name, value in known.items() if value},
        }


def _meta(kind: str, place: dict[str, int], **args: object) -> Event:
    return {"ph": "M", "name": kind, **place, "args": args}


def _death(rank: Rank) -> str | None:
    """How a rank ended, if it failed or was killed."""
    if rank.cause:
        return f"rank {rank.number} {rank.cause}"
    if rank.error:
        return f"rank {rank.number} failed: {rank.error.partition(':')[0]}"
    if rank.exit_code:
        return f"rank {rank.number} {how_it_ended(rank.exit_code)}"
    return None


def _args(op: Op) -> dict[str, object]:
    """What is known of an op, without empty values."""
    fields = {
        "group": op.group.name if op.group.ranks else None,  # a phase has none
        "seq": op.seq,
        "shapes": op.signature.get("shapes"),
        "dtypes": op.signature.get("dtypes"),
        "bytes": op.size_bytes,
        "site": f"{op.site.file}:{op.site.line}" if op.site else None,
        "function": op.site.function if op.site else None,
        "reduce": op.reduce,
        "phase": op.phase,
        "state": "failed" if op.is_failed else "blocked" if op.is_blocked else None,
    }
    known: dict[str, object] = {name: value for name, value in fields.items() if value not in (None, "", [], 0)}
    if op.is_point_to_point:
        return known | {"peer": op.peer, "tag": op.tag}
    return known | ({"root": op.peer} if op.peer >= 0 else {})

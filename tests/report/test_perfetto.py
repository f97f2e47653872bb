"""The trace that `rollcall export --perfetto` writes, checked by what a viewer needs of it."""

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rollcall.record import ring_format
from rollcall.record.ring import Ring
from rollcall.report.perfetto import export
from tests.rollcall_command import Runner

Event = dict[str, Any]


@pytest.fixture(scope="module")
def runner(restarted: Runner) -> Runner:
    """Its second attempt: two threads, a late rank, async ops, sends, and a failure."""
    return restarted


@pytest.fixture(scope="module")
def events(runner: Runner) -> list[Event]:
    told = runner("export", "--perfetto", "trace.json")
    assert told.code == 0, told.err
    assert "trace.json: open it at" in told.out
    return list(json.loads((runner.folder / "trace.json").read_text())["traceEvents"])


def tracks(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def names(events: list[Event]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def track(events: list[Event], name: str) -> list[Event]:
    (place,) = [place for place, each in names(events).items() if each == name]
    return tracks(events)[place]


def check(events: list[Event]) -> None:
    """As a viewer reads it: in order of time, of the same time as it stands in the file; each track has a stack of
    slices that are open. A slice fits into the one that is open; an arrow begins and ends in one."""
    open_: dict[tuple[int, int], list[int]] = defaultdict(list)  # by track: when its open slices end
    flows: dict[int, str] = {}
    running: set[tuple[str, str]] = set()
    named = set(names(events))
    for event in sorted((e for e in events if e["ph"] != "M"), key=lambda e: _ns(e["ts"])):
        track, at_ns = (event["pid"], event["tid"]), _ns(event["ts"])
        assert at_ns >= 0
        assert track in named
        stack = open_[track]
        while stack and stack[-1] <= at_ns:
            stack.pop()
        match event["ph"]:
            case "X":
                end_ns = at_ns + _ns(event["dur"])
                assert end_ns >= at_ns
                assert not stack or end_ns <= stack[-1], event
                stack.append(end_ns)
            case "s":
                assert stack, event
                assert event["id"] not in flows
                flows[event["id"]] = event["name"]
            case "f":
                assert stack, event
                assert event["bp"] == "e"
                assert flows.pop(event["id"]) == event["name"]
            case "b":
                assert (event["cat"], event["id"]) not in running
                running.add((event["cat"], event["id"]))
            case "e":
                running.remove((event["cat"], event["id"]))
            case "i":
                assert event["s"] == "t"
            case other:
                raise AssertionError(f"what is {other}?")
    assert not flows
    assert not running


def _ns(us: float) -> int:
    return round(us * 1000)


def test_a_viewer_can_open_it(events: list[Event]) -> None:
    """Slices nest, times go forward, every arrow and every async op has both its ends."""
    assert {event["ph"] for event in events} == set("MXsfbei")
    check(events)


def test_each_rank_has_its_track(events: list[Event]) -> None:
    """Named after it, under its host; a second thread has one of its own."""
    wanted = {f"rank {rank}" for rank in range(3)} | {f"rank {rank}, thread 1" for rank in range(3)}
    assert set(names(events).values()) >= wanted
    assert len({pid for pid, _ in names(events)}) == 1
    assert [each["name"] for each in track(events, "rank 2, thread 1") if each["cat"] == "op"] == ["all_reduce"] * 5


def test_a_slice_says_what_its_op_is_about(events: list[Event]) -> None:
    """Group, seq, shape, dtype, bytes, line; the peer and tag of a send."""
    send = next(each for each in track(events, "rank 0") if each["name"] == "send")
    assert (
        send["args"].items()
        >= {
            "group": "0",
            "seq": 1,
            "shapes": [[4]],
            "dtypes": ["float32"],
            "bytes": 16,
            "peer": 1,
            "tag": 7,
        }.items()
    )
    assert send["args"]["site"].endswith("script.py:25")
    reduce = next(each for each in events if each["ph"] == "b")
    assert reduce["args"]["reduce"] == "SUM"


def test_who_waited_is_seen(events: list[Event]) -> None:
    """The part in which a rank waits for the late one is a slice of its own, and an arrow comes from there."""
    waits = [each for each in track(events, "rank 0") if each["name"] == "waiting for rank 1"]
    assert waits
    late = {number for (_, number), name in names(events).items() if name == "rank 1"}
    assert sum(event["ph"] == "s" and event["tid"] in late for event in events) >= len(waits)


def test_phases_have_a_track(events: list[Event]) -> None:
    """Under the name that the program gave them, with the line."""
    found = track(events, "rank 1, phases")
    assert [each["name"] for each in found] == ["load"] * 3
    assert found[0]["args"]["site"].endswith("script.py:21")


def test_a_death_is_marked(events: list[Event]) -> None:
    """As an instant on the rank's track, with its error."""
    deaths = {event["name"]: event for event in events if event["ph"] == "i"}
    assert deaths["rank 2 failed: ValueError"]["args"]["error"] == "ValueError: out of data"


def test_it_may_be_compressed(runner: Runner, events: list[Event]) -> None:
    """The same events in a file that ends in .gz."""
    assert runner("export", "--perfetto", "trace.json.gz").code == 0
    with gzip.open(runner.folder / "trace.json.gz") as file:
        assert json.load(file)["traceEvents"] == events


def test_a_place_that_cannot_be_written_is_named(runner: Runner) -> None:
    """In one sentence."""
    told = runner("export", "--perfetto", "nowhere/trace.json")
    assert told.code == 2
    assert told.err == (
        "rollcall: cannot write nowhere/trace.json (No such file or directory):"
        " name a file in a folder that exists and can be written\n"
    )


def test_clocks_of_hosts_are_set_right(tmp_path: Path) -> None:
    """Each host is a process, and ops that were at the same time are so in the trace, whatever the clocks said."""
    ahead_ns = 3_600_000_000_000
    facts = {
        "hosts": {
            "alpha": {"slots": 1, "clock_readings": [[0, 0, 10]]},
            "beta": {"slots": 1, "clock_readings": [[0, ahead_ns, 10]]},
        },
        "attempts": [{"world_size": 2}],
        "outcome": "ok",
    }
    (tmp_path / "run.json").write_text(json.dumps(facts))
    for rank, host in enumerate(facts["hosts"]):
        write_ring(tmp_path, rank, host, START_NS + rank * (ahead_ns + 1_000_000))
    export(tmp_path, None, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    check(events)
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["alpha", "beta"]
    starts = {names(events)[e["pid"], e["tid"]]: e["ts"] for e in events if e["name"] == "barrier"}
    assert starts == {"rank 0": 0, "rank 1": 1000}


START_NS = 5_000_000_000_000


def write_ring(folder: Path, rank: int, host: str, at_ns: int) -> None:
    """One barrier, entered at this time by the clock of its host."""
    path = folder / "rings" / "attempt-0" / f"rank-{rank}.ring"
    ring = Ring(path, rank=rank, world_size=2, attempt=0, host=host)
    group = ring.name("group", "0", {"name": "0", "ranks": [[0, 1]]})
    at = ring.add(ring_format.OP["barrier"], group=group)
    ring.completed(at)
    with open(path, "r+b") as file:
        for offset, ns in ((8, at_ns), (ring_format.COMPLETED_AT, at_ns + 5_000_000)):
            file.seek(at + offset)
            file.write(ring_format.NUMBER.pack(ns))

"""A real job that runs, looked at while it does. `make looks` looks ten thousand times, at jobs of all sorts."""

import subprocess
import sys
import time
from pathlib import Path

from rollcall.live.reader import LiveRing
from rollcall.record import ring_format
from rollcall.record.ring import Ring

LOOKS = Path(__file__).parents[2] / "benchmarks" / "looks.py"


def test_a_healthy_job_is_not_blamed_while_it_runs() -> None:
    """DDP on four ranks, with a checkpoint of rank 0's now and then: whatever explain sees, it is in flight."""
    words = [sys.executable, str(LOOKS), "--looks", "60", "--ranks", "4", "--kinds", "ddp"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "ddp: 60 looks" in found.stdout


def test_what_begins_while_rings_are_read_is_seen_at_the_next_look(tmp_path: Path) -> None:
    """Neither is it lost: the ring is read on from there."""
    path = tmp_path / "rank-0.ring"
    ring = Ring(path, rank=0, world_size=1, attempt=0, host="h")
    group = ring.name("group", "0", {"name": "0", "ranks": [0]})
    ring.completed(ring.add(ring_format.OP["barrier"], 0, group))
    open_op = ring.add(ring_format.OP["barrier"], 0, group)
    at_ns = time.monotonic_ns()
    ring.completed(open_op)
    ring.add(ring_format.OP["barrier"], 0, group)
    live = LiveRing.open(path)
    assert live is not None
    seen = live.read_new(at_ns)
    assert [bool(each) for each in seen["completed_ns"]] == [True, False]
    assert (live.seen, live.reached["0"]) == (2, 2)
    later = live.read_new(time.monotonic_ns())
    assert [bool(each) for each in later["completed_ns"]] == [True, True, False]
    assert (live.seen, live.reached["0"]) == (3, 3)
    live.close()

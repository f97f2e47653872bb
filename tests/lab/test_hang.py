"""When the lab takes ranks to hang: from their recording alone."""

import time
from collections.abc import Callable
from pathlib import Path

from rollcall.lab.runner import worlds
from rollcall.record.ring import Ring
from rollcall.record.ring_format import OP


def make_ring(folder: Path, rank: int) -> Ring:
    path = folder / "rings" / "attempt-0" / f"rank-{rank}.ring"
    return Ring(path, rank=rank, world_size=2, attempt=0, host="here", size_bytes=1 << 16)


def is_true_within(condition: Callable[[], bool], seconds: float) -> bool:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_ranks_that_still_join_do_not_hang(tmp_path: Path) -> None:
    """A rank that waits in the first barrier for another, which starts slowly, is no deadlock."""
    waiting, _ = make_ring(tmp_path, 0), make_ring(tmp_path, 1)
    waiting.completed(waiting.add(OP["init"], 0))
    waiting.add(OP["barrier"], 0)
    assert not is_true_within(worlds.watch_for_hang(tmp_path, 2, 0.05), 0.4)


def test_ranks_that_have_joined_and_wait_hang(tmp_path: Path) -> None:
    """One blocked rank is enough, if the other one does nothing new."""
    rings = [make_ring(tmp_path, rank) for rank in (0, 1)]
    for ring in rings:
        ring.completed(ring.add(OP["init"], 0))
        ring.completed(ring.add(OP["barrier"], 0))
    is_hung = worlds.watch_for_hang(tmp_path, 2, 0.05, is_running=lambda pid: False)
    assert not is_true_within(is_hung, 0.4)
    rings[0].add(OP["recv"], 0)
    assert is_true_within(is_hung, 10.0)


def test_a_rank_that_waits_for_a_processor_does_not_hang(tmp_path: Path) -> None:
    """It may come to its op later. The process of these rings is this one, which runs."""
    rings = [make_ring(tmp_path, rank) for rank in (0, 1)]
    for ring in rings:
        ring.completed(ring.add(OP["init"], 0))
        ring.completed(ring.add(OP["barrier"], 0))
    rings[0].add(OP["recv"], 0)
    assert not is_true_within(worlds.watch_for_hang(tmp_path, 2, 0.05), 0.4)

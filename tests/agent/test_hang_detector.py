"""When ranks are at a standstill, as their rings show it."""

from pathlib import Path

from rollcall.agent.monitoring.hang_detector import HangDetector
from rollcall.protocol.messages import Standstill
from rollcall.record import ring_format
from rollcall.record.ring import Ring

HUNG, MOVING = Standstill(True, True), None  # None: nothing has changed


def blocked(folder: Path, rank: int) -> Ring:
    path = folder / "rings" / "attempt-0" / f"rank-{rank}.ring"
    ring = Ring(path, rank=rank, world_size=2, attempt=0, host="here", size_bytes=ring_format.RECORDS_AT + 4096)
    ring.add(ring_format.OP["barrier"], group=1)
    return ring


def check(folder: Path, least_rings: int = 0) -> Standstill | None:
    return HangDetector(folder, after_s=0, every_s=0, least_rings=least_rings).check(0)


def test_ranks_that_wait_and_do_not_move_hang(tmp_path: Path) -> None:
    blocked(tmp_path, 0)
    blocked(tmp_path, 1)
    assert check(tmp_path, least_rings=2) == HUNG


def test_a_rank_whose_recording_stopped_may_move(tmp_path: Path) -> None:
    """Its ring stands still for another reason, and --on-hang stop must not end it for that."""
    blocked(tmp_path, 0)
    blocked(tmp_path, 1).note_stop("in barrier: ValueError: broken")
    assert check(tmp_path) == MOVING


def test_a_rank_that_is_not_recorded_may_move(tmp_path: Path) -> None:
    blocked(tmp_path, 0)
    assert check(tmp_path, least_rings=2) == MOVING

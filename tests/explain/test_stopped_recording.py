"""Ranks whose recording stopped while their program went on, and ranks without a ring: they are not blamed for that."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rollcall.explain.terminal import PrintedVerdict, tell
from rollcall.explain.verdict import Explanation, explain
from rollcall.record import ring_format
from rollcall.record.ring import Ring

SIZE = ring_format.RECORDS_AT + 64 * ring_format.RECORD.size
WHY = "in all_reduce: ValueError: broken"


def make(folder: Path, rank: int, world_size: int = 2) -> Ring:
    path = folder / "rings" / "attempt-0" / f"rank-{rank}.ring"
    return Ring(path, rank=rank, world_size=world_size, attempt=0, host="here", size_bytes=SIZE)


def reduce(ring: Ring, completed: int, is_blocked: bool = False) -> None:
    group = ring.name("group", "g", {"name": "0", "ranks": [[0, 1]]})
    for number in range(completed + is_blocked):
        at = ring.add(ring_format.OP["all_reduce"], group=group)
        if number < completed:
            ring.completed(at)


def message(ring: Ring, op: str, peer: int) -> None:
    """A send that is over, or a receive that waits."""
    at = ring.add(ring_format.OP[op], group=ring.name("group", "g", {"name": "0", "ranks": [[0, 1]]}), peer=peer)
    if op == "send":
        ring.completed(at)


def calls(one: Ring, other: Ring) -> None:
    """One waits in a call; the other has been in fewer calls, and its last one is open."""
    reduce(one, 5, is_blocked=True)
    reduce(other, 2, is_blocked=True)


def messages(one: Ring, other: Ring) -> None:
    message(one, "send", 1)
    message(one, "recv", 1)
    reduce(other, 1)


@pytest.mark.parametrize("happened", [calls, messages])
def test_what_a_rank_did_after_its_recording_stopped_is_not_known(
    tmp_path: Path, happened: Callable[[Ring, Ring], None]
) -> None:
    """It may have done what the others wait for. Without the stop, the same rings are a finding."""
    assert _explained(tmp_path / "whole", happened, "").findings
    found = _explained(tmp_path / "stopped", happened, WHY)
    assert found.findings == []
    assert found.run.problems == (f"the recording of rank 1 stopped {WHY}; what it did then is not known",)


def _explained(folder: Path, happened: Callable[[Ring, Ring], None], why: str) -> Explanation:
    one, other = make(folder, 0), make(folder, 1)
    happened(one, other)
    if why:
        other.note_stop(why)
    return explain(folder, is_hung=True)


def test_calls_until_the_stop_are_compared(tmp_path: Path) -> None:
    one, other = make(tmp_path, 0), make(tmp_path, 1)
    for ring, op in ((one, "all_reduce"), (other, "broadcast")):
        ring.completed(ring.add(ring_format.OP[op], group=ring.name("group", "g", {"name": "0", "ranks": [[0, 1]]})))
    other.note_stop(WHY)
    (finding,) = explain(tmp_path).findings
    assert finding.kind == "mismatched-op"


def test_a_rank_without_a_ring_is_not_said_to_have_sent_nothing(tmp_path: Path) -> None:
    message(make(tmp_path, 0), "recv", 1)
    found = explain(tmp_path)
    assert found.findings == []
    assert found.run.problems == ("no ring of rank 1: this explanation is without them",)


def test_a_long_reason_is_cut(tmp_path: Path) -> None:
    """It has its place in the header, and leaves the rest as it is."""
    ring = make(tmp_path, 0, world_size=1)
    reduce(ring, 1)
    ring.note_stop("x" * 5000)
    (rank,) = explain(tmp_path).run.ranks.values()
    assert (rank.stopped, len(rank.ops)) == ("x" * ring_format.STOPPED_BYTES, 1)


def test_a_hang_that_is_not_understood_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As on one of several hosts that were started by hand: where the ranks are, and why there is no verdict."""
    message(make(tmp_path, 0), "recv", 1)
    stacks = tmp_path / "rings" / "attempt-0" / "rank-0.stacks"
    stacks.write_text('Current thread 0x7 (most recent call first):\n  File "/home/me/train.py", line 3 in receive\n\n')
    assert not tell(tmp_path, hangs_for_s=60).is_left_alone
    assert capsys.readouterr().err.splitlines() == [
        "rollcall: no rank has made progress for 60 s, and some of them wait",
        "rollcall: why is not known: no ring of rank 1: this explanation is without them",
        "rollcall: where the ranks are:",
        "  rank 0: train.py:3 in receive",
    ]
    assert tell(tmp_path) == PrintedVerdict()
    assert capsys.readouterr().err == ""


def test_why_a_rank_has_no_stack_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest answer counts."""
    message(make(tmp_path, 0), "recv", 1)
    stacks = tmp_path / "rings" / "attempt-0" / "rank-0.stacks"
    stacks.write_text(
        'Current thread 0x7 (most recent call first):\n  File "a.py", line 3 in f\n\nNo stack: it is busy\n'
    )
    tell(tmp_path, hangs_for_s=60)
    assert capsys.readouterr().err.splitlines()[-1] == "  rank 0: not known: it is busy"

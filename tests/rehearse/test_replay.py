"""Ranks that were recorded alone wait for each other in the replay."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rollcall.explain.loading.load import load
from rollcall.record import ring_format
from rollcall.rehearse import replay
from tests.report.rings import FakeOp, write


def calls(*ops: str, **facts: object) -> list[FakeOp]:
    """Ops on the group of all ranks, each over at once, as a rank records them that runs alone."""
    return [FakeOp(op, number, number, number + 0.5, **facts) for number, op in enumerate(ops, 1)]  # type: ignore[arg-type]


def replayed(folder: Path, ranks: Sequence[list[FakeOp]], cut: Sequence[int] = ()) -> list[int]:
    write(folder, ranks)
    found = replay.Replay(map(replay.read, sorted((folder / "rings/attempt-0").glob("*.ring"))), cut)
    hung = found.run()
    found.write()
    return hung


def test_ranks_that_make_the_same_calls_come_to_their_ends(tmp_path: Path) -> None:
    assert replayed(tmp_path, [calls("all_reduce", "barrier")] * 3) == []
    assert all(op.completed_ns for rank in load(tmp_path).ranks.values() for op in rank.ops)


def test_a_call_that_one_rank_leaves_out_keeps_the_others_waiting(tmp_path: Path) -> None:
    assert replayed(
        tmp_path, [calls("all_reduce", "barrier"), calls("all_reduce", "barrier"), calls("all_reduce")]
    ) == [
        0,
        1,
    ]


def test_what_a_rank_recorded_after_it_would_hang_has_not_happened(tmp_path: Path) -> None:
    replayed(tmp_path, [calls("barrier", "all_reduce", "all_reduce"), calls("barrier")])
    assert [op.op for op in load(tmp_path).ranks[0].ops] == ["barrier", "all_reduce"]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(FakeOp("broadcast", 1, 1, 2), id="another op"),
        pytest.param(FakeOp("all_reduce", 1, 1, 2, size_bytes=8), id="another size"),
    ],
)
def test_ranks_that_do_not_do_the_same_hang(tmp_path: Path, other: FakeOp) -> None:
    assert replayed(tmp_path, [calls("all_reduce"), [other]]) == [0, 1]


def test_another_reduce_op_gives_wrong_results_and_no_hang(tmp_path: Path) -> None:
    assert replayed(tmp_path, [calls("all_reduce", reduce="SUM"), calls("all_reduce", reduce="MAX")]) == []


def test_two_ranks_that_send_first_wait_for_each_other(tmp_path: Path) -> None:
    ranks = [[FakeOp("send", 1, 1, 2, peer=1 - r), FakeOp("recv", 1, 3, 4, peer=1 - r)] for r in (0, 1)]
    assert replayed(tmp_path, ranks) == [0, 1]


def test_a_send_meets_its_receive(tmp_path: Path) -> None:
    assert replayed(tmp_path, [[FakeOp("send", 1, 1, 2, peer=1)], [FakeOp("recv", 1, 1, 2, peer=0)]]) == []


def test_an_async_op_blocks_only_in_its_wait(tmp_path: Path) -> None:
    sends = [
        [
            FakeOp("send", 1, 1, 4, waited_ms=3, issued_ms=1.1, peer=1 - r, flags=ring_format.ASYNC),
            FakeOp("recv", 1, 2, 2.5, peer=1 - r),
        ]
        for r in (0, 1)
    ]
    assert replayed(tmp_path, sends) == []


def test_nobody_waits_for_a_rank_that_was_stopped_after_its_steps(tmp_path: Path) -> None:
    assert replayed(tmp_path, [calls("all_reduce", "all_reduce"), calls("all_reduce")], cut=[1]) == []


def test_a_message_to_a_rank_that_was_stopped_before_it_is_over(tmp_path: Path) -> None:
    sends = [FakeOp("send", 1, 1, 2, peer=1), FakeOp("send", 2, 3, 4, peer=1)]
    assert replayed(tmp_path, [sends, [FakeOp("recv", 1, 1, 2, peer=0)]], cut=[0, 1]) == []


def test_messages_that_wait_for_each_other_hang_also_if_their_ranks_were_stopped_later(tmp_path: Path) -> None:
    """Both ends are recorded: that the ranks would have done more does not matter."""
    ranks = [[FakeOp("send", 1, 1, 2, peer=1 - r), FakeOp("recv", 1, 3, 4, peer=1 - r)] for r in (0, 1)]
    assert replayed(tmp_path, ranks, cut=[0, 1]) == [0, 1]


def test_the_clock_of_a_replay_has_no_time_of_the_rehearsal(tmp_path: Path) -> None:
    """Rank 1 took a second longer: that means nothing."""
    replayed(tmp_path, [calls("barrier"), [FakeOp("barrier", 1, 1000, 1001)]])
    entered = [rank.ops[0].entered_ns for rank in load(tmp_path).ranks.values()]
    assert entered[0] == entered[1]


def test_an_op_that_ranks_wait_in_forever_is_not_over(tmp_path: Path) -> None:
    write(tmp_path, [calls("all_reduce", "barrier"), calls("all_reduce")])
    found = replay.of_folder(tmp_path, [])
    found.run()
    assert [found.is_over(0, 1), found.is_over(0, 2), found.is_over(1, 1)] == [True, False, True]


def test_the_same_calls_have_the_same_digest_whenever_they_were_made(tmp_path: Path) -> None:
    write(tmp_path, [calls("barrier"), [FakeOp("barrier", 1, 9, 10)], calls("all_reduce")])
    first, second, other = (replay.digest(tmp_path / f"rings/attempt-0/rank-{rank}.ring") for rank in range(3))
    assert first == second != other

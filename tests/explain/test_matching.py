"""Ops of all ranks that belong together: collectives by their sequence, sends and receives by tag and order."""

from rollcall.explain.load import Folded
from rollcall.explain.matching import Calls, Pairs, deviants
from tests.report.rings import FakeOp, run


def seqs(calls: Calls) -> list[tuple[str, int, list[int]]]:
    """Group, sequence and ranks of all calls."""
    found = [calls.get(number) for number in range(len(calls))]
    return [(call.group.name, call.seq, list(call.ops)) for call in found]


def pairs(*ranks: list[FakeOp]) -> dict[int, int]:
    """By row of a send: the row of its receive."""
    sends, recvs = Pairs(run(ranks)).matched()
    return dict(zip(sends.tolist(), recvs.tolist(), strict=True))


def test_collectives_are_matched_by_their_sequence() -> None:
    """The second of one rank belongs to the second of another, whenever that was."""
    first = [FakeOp("all_reduce", 1, 0, 1), FakeOp("all_reduce", 2, 2, 3)]
    late = [FakeOp("all_reduce", 1, 500, 501), FakeOp("all_reduce", 2, 502, 503)]
    assert seqs(Calls(run([first, late]))) == [("0", 1, [0, 1]), ("0", 2, [0, 1])]


def test_each_group_counts_by_itself() -> None:
    """The first call of another group is another call."""
    ops = [FakeOp("barrier", 1, 0, 1), FakeOp("barrier", 1, 2, 3, group="pair")]
    calls = Calls(run([ops, ops, ops[:1]], groups={"pair": [0, 1]}))
    assert sorted(seqs(calls)) == [("0", 1, [0, 1, 2]), ("pair", 1, [0, 1])]
    assert calls.has_all.all()


def test_ranks_in_different_ops_are_in_one_call() -> None:
    """Where the sequence is the same: that is how a mismatch shows."""
    calls = Calls(run([[FakeOp("all_reduce", 1, 0)], [FakeOp("broadcast", 1, 0)]]))
    assert {op.op for op in calls.get(0).ops.values()} == {"all_reduce", "broadcast"}


def test_a_rank_that_does_not_come_is_missing() -> None:
    """Of its group, not of the world."""
    calls = Calls(run([[FakeOp("barrier", 1, 0, group="side")], [], []], groups={"side": [0, 2]}))
    assert calls.get(0).missing == [2]
    assert calls.get(0).blocked == [0]
    assert not calls.has_all.any()


def test_calls_come_in_the_order_in_which_they_began() -> None:
    """Not by the name of their group."""
    ops = [FakeOp("barrier", 1, 50, 51), FakeOp("barrier", 1, 10, 11, group="side")]
    calls = Calls(run([ops, ops], groups={"side": [0, 1]}))
    assert [calls.get(int(number)).group.name for number in calls.by_time] == ["side", "0"]


def test_the_last_to_arrive_is_known_for_each_call() -> None:
    """Of two that arrive at once, the lower rank counts."""
    calls = Calls(run([[FakeOp("barrier", 1, 5, 6)], [FakeOp("barrier", 1, 5, 6)], [FakeOp("barrier", 1, 3, 6)]]))
    assert calls.last_rows.tolist() == [0]


def test_calls_of_which_a_ring_lost_its_op_are_left_out() -> None:
    """Or a rank would seem to be missing there."""
    made = run([[FakeOp("barrier", n, n, n + 1) for n in (1, 2, 3)], [FakeOp("barrier", 3, 3, 4)]])
    lost = type(made)(**{**made.__dict__, "folded": (Folded(1, "0", "barrier", 2, 0, 0),)})
    assert seqs(Calls(lost)) == [("0", 3, [0, 1])]


def test_of_a_ring_that_was_read_in_part_older_calls_are_left_out() -> None:
    """Of a long run, the live page reads the newest ops of each rank: some reach further back than others."""
    groups = {"side": [0, 1]}
    first = [FakeOp("barrier", n, n, n + 1) for n in (1, 2, 3, 4)]
    side = FakeOp("barrier", 1, 0, 1, group="side")
    made = run([[side, *first], first[2:]], groups=groups, dropped={1: 2})
    assert seqs(Calls(made)) == [("0", 3, [0, 1]), ("0", 4, [0, 1])]
    # A call that began after the records of the other do, is one that the other has not come to.
    late = FakeOp("barrier", 1, 90, group="side")
    assert ("side", 1, [0]) in seqs(Calls(run([[*first, late], first[2:]], groups=groups, dropped={1: 2})))


def test_calls_of_ranks_outside_the_group_are_no_calls() -> None:
    """torch passes over them."""
    assert seqs(Calls(run([[FakeOp("barrier", 1, 0, 1, group="")], []]))) == []


def test_a_send_meets_the_receive_of_its_tag() -> None:
    """Also if the receives come in another order."""
    sends = [FakeOp("send", 1, 0, 9, peer=1, tag=7), FakeOp("send", 2, 1, 9, peer=1, tag=8)]
    recvs = [FakeOp("recv", 1, 0, 9, peer=0, tag=8), FakeOp("recv", 2, 1, 9, peer=0, tag=7)]
    assert pairs(sends, recvs) == {0: 3, 1: 2}


def test_of_one_tag_the_first_send_meets_the_first_receive() -> None:
    """As the network keeps their order."""
    sends = [FakeOp("send", n, n, 9, peer=1) for n in (1, 2)]
    recvs = [FakeOp("recv", n, n, 9, peer=0) for n in (1, 2)]
    assert pairs(sends, recvs) == {0: 2, 1: 3}


def test_a_send_to_another_rank_does_not_meet() -> None:
    """Both are left alone, each on its side."""
    matched = Pairs(run([[FakeOp("send", 1, 0, 9, peer=2)], [FakeOp("recv", 1, 0, peer=0)], []]))
    assert [op.rank for op in matched.unmatched("send")] == [0]
    assert [op.rank for op in matched.unmatched("recv")] == [1]


def test_a_receive_from_anyone_takes_a_send_that_is_left() -> None:
    """Not one that a receive from its sender has taken."""
    assert pairs(
        [FakeOp("send", 1, 0, 9, peer=2)],
        [FakeOp("send", 1, 1, 9, peer=2)],
        [FakeOp("recv", 1, 0, 9, peer=-1), FakeOp("recv", 2, 1, 9, peer=0)],
    ) == {0: 3, 1: 2}


def test_the_deviants_are_those_who_differ_from_the_majority() -> None:
    """All of them, where there is no majority; none, where all are alike."""
    assert deviants({0: "a", 1: "a", 2: "b"}) == [2]
    assert deviants({0: "a", 1: "b"}) == [0, 1]
    assert deviants({0: "a", 1: "a", 2: "b", 3: "b"}) == [0, 1, 2, 3]
    assert deviants({0: "a", 1: "a"}) == []

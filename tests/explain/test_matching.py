"""Ops of all ranks that belong together: collectives by their sequence, sends and receives by tag and order."""

from dataclasses import replace

from rollcall.explain.loading.load import Folded, Run
from rollcall.explain.matching import Calls, Pairs, deviants
from tests.report.rings import FakeOp, run


def seqs(calls: Calls) -> list[tuple[str, int, list[int]]]:
    """Group, sequence and ranks of all calls."""
    found = [calls.get(number) for number in range(len(calls))]
    return [(call.group.name, call.seq, list(call.ops)) for call in found]


def pairs(*ranks: list[FakeOp]) -> dict[int, int]:
    return met(Pairs(run(ranks)))


def met(matched: Pairs) -> dict[int, int]:
    """By row of a send: the row of its receive."""
    sends, recvs = matched.matched()
    return dict(zip(sends.tolist(), recvs.tolist(), strict=True))


def with_lost(made: Run, rank: int, op: str, count: int) -> Run:
    """The ring of a rank has overwritten so many of its ops of the world."""
    return replace(made, folded=(Folded(rank, made.table.names.groups[1], op, count, 0, 0),))


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
    barriers = [FakeOp("barrier", n, n, n + 1) for n in (1, 2, 3)]
    assert seqs(Calls(run([barriers, barriers[2:]], dropped={1: 2}))) == [("0", 3, [0, 1])]


def test_where_nothing_is_left_of_a_group_its_counter_says_which_calls_are_known() -> None:
    """Those after the lost ones: a rank that never came there is still missing."""
    barriers = [FakeOp("barrier", n, n, n + 1) for n in (1, 2, 3)]
    made = run([barriers, []], dropped={1: 2})
    assert seqs(Calls(with_lost(made, 1, "barrier", 2))) == [("0", 3, [0])]


def test_of_a_group_that_a_cut_view_has_no_call_of_nothing_is_compared() -> None:
    """Nor if the ring had no room for the counter of the group."""
    barriers = [FakeOp("barrier", n, n, n + 1) for n in (1, 2, 3)]
    for unknown in ({"unread": {1: 2}}, {"has_all_counters": {1: False}}):
        assert seqs(Calls(run([barriers, []], dropped={1: 2}, **unknown))) == []


def test_ops_of_an_unknown_group_are_no_calls() -> None:
    """The ring had no room for its name: they may be of different groups."""
    made = run([[FakeOp("barrier", 1, 0, 1)], [FakeOp("broadcast", 1, 0, 1)]])
    made.table.group[:] = 0
    assert len(Calls(made)) == 0


def test_calls_of_ranks_outside_the_group_are_no_calls() -> None:
    """torch passes over them."""
    assert seqs(Calls(run([[FakeOp("barrier", 1, 0, 1, group="")], []]))) == []


def test_a_send_meets_the_receive_of_its_tag() -> None:
    """Also if the receives come in another order."""
    sends = [FakeOp("send", 1, 0, 9, peer=1, tag=7), FakeOp("send", 1, 1, 9, peer=1, tag=8)]
    recvs = [FakeOp("recv", 1, 0, 9, peer=0, tag=8), FakeOp("recv", 1, 1, 9, peer=0, tag=7)]
    assert pairs(sends, recvs) == {0: 3, 1: 2}


def test_of_one_tag_the_first_send_meets_the_first_receive() -> None:
    """As the network keeps their order."""
    sends = [FakeOp("send", n, n, 9, peer=1) for n in (1, 2)]
    recvs = [FakeOp("recv", n, n, 9, peer=0) for n in (1, 2)]
    assert pairs(sends, recvs) == {0: 2, 1: 3}


def test_a_receive_from_anyone_took_the_send_that_is_over() -> None:
    """It aborted, so nobody knows from whom it received; the other senders still wait."""
    receiver = [FakeOp("recv", 1, 5, peer=-1)]
    senders = [[FakeOp("send", 1, 0, peer=0)], [FakeOp("send", 1, 1, 6, peer=0)], [FakeOp("send", 1, 2, peer=0)]]
    assert pairs(receiver, *senders) == {2: 0}


def test_a_send_to_another_rank_does_not_meet() -> None:
    """Both are left alone, each on its side."""
    matched = Pairs(run([[FakeOp("send", 1, 0, 9, peer=2)], [FakeOp("recv", 1, 0, peer=0)], []]))
    assert [op.rank for op in matched.unmatched("send")] == [0]
    assert [op.rank for op in matched.unmatched("recv")] == [1]


def test_sends_and_receives_that_are_left_meet_by_their_number() -> None:
    """The sender's ring has lost its first two: its third meets the third receive, not the first."""
    sends = [FakeOp("send", n, n, 9, peer=1) for n in (3, 4)]
    recvs = [FakeOp("recv", n, n, 9, peer=0) for n in (1, 2, 3)]
    matched = Pairs(run([sends, recvs], dropped={0: 2}))
    assert met(matched) == {0: 4}
    assert [op.seq for op in matched.unmatched("recv")] == []
    assert [op.seq for op in matched.unmatched("send")] == [4]


def test_an_op_whose_partner_may_be_lost_is_not_without_partner() -> None:
    """Of the other side nothing is left: only what its counter does not reach was never sent."""
    recvs = [FakeOp("recv", n, n, 9, peer=0) for n in (2, 3)]
    made = run([[], recvs], dropped={0: 5})
    assert [op.seq for op in Pairs(with_lost(made, 0, "send", 2)).unmatched("recv")] == [3]
    assert [op.seq for op in Pairs(run([[], recvs], dropped={0: 5}, unread={0: 5})).unmatched("recv")] == []


def test_an_op_that_still_blocks_its_rank_has_lost_no_partner() -> None:
    """A send that the ring has overwritten was over long ago, and would have ended its receive."""
    for completed_ms, left in ((0, [2]), (9, [])):
        made = run([[], [FakeOp("recv", 2, 2, completed_ms, peer=0)]], dropped={0: 5}, unread={0: 5})
        assert [op.seq for op in Pairs(made).unmatched("recv")] == left


def test_of_a_rank_without_a_ring_nobody_says_that_it_did_not_send() -> None:
    """Its ring cannot be read: what it did is not known."""
    made = run([[FakeOp("recv", 1, 0, peer=1)], []])
    del made.ranks[1]
    assert len(Pairs(made).unmatched("recv")) == 0


def test_a_receive_from_anyone_takes_a_send_that_is_left() -> None:
    """Not one that a receive from its sender has taken."""
    assert pairs(
        [FakeOp("send", 1, 0, 9, peer=2)],
        [FakeOp("send", 1, 1, 9, peer=2)],
        [FakeOp("recv", 1, 0, 9, peer=-1), FakeOp("recv", 1, 1, 9, peer=0)],
    ) == {0: 3, 1: 2}


def test_the_deviants_are_those_who_differ_from_the_majority() -> None:
    """All of them, where there is no majority; none, where all are alike."""
    assert deviants({0: "a", 1: "a", 2: "b"}) == [2]
    assert deviants({0: "a", 1: "b"}) == [0, 1]
    assert deviants({0: "a", 1: "a", 2: "b", 3: "b"}) == [0, 1, 2, 3]
    assert deviants({0: "a", 1: "a"}) == []

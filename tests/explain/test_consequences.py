"""What only follows from something else is not the verdict. Each claim was wrong on a generated program once."""

import linecache
from dataclasses import replace
from typing import Any

import pytest

from rollcall.explain.evidence import Evidence
from rollcall.explain.findings import Finding
from rollcall.explain.loading.table import Site
from rollcall.explain.verdict import explain_run
from rollcall.record import ring_format
from tests.report.rings import FILE, START_NS, FakeOp, run

ASYNC, WAITED, FAILED, BUCKET = ring_format.ASYNC, ring_format.WAITED, ring_format.FAILED, ring_format.BUCKET

PROGRAM = """\
def train():
    for step in range(100):
        hidden = receive()
        dist.all_reduce(loss)
        if has_converged:
            break
        dist.broadcast(loss, 0)
    if rank == 1:
        dist.all_reduce(square)
        dist.all_reduce(mean)
    else:
        dist.all_reduce(mean)
        dist.all_reduce(square)
    if rank == 1:
        dist.barrier()
    dist.barrier()
    group = dist.new_group([0, 1])
    dist.barrier()
    for epoch in range(3):
        group = dist.new_group()
        for batch in range(6):
            dist.all_reduce(loss)
    if rank == 0:
        dist.barrier()
    else:
        while not exists(path):
            sleep(1)
        dist.barrier()
"""
LOOP, LOSS, BREAK, SHARE = 3, 4, 6, 7
MINE = (9, 10)  # square, mean
THEIRS = (12, 13)  # mean, square
EXTRA, FIRST, GROUP, LAST = 15, 16, 17, 18
MAKE, INNER = 20, 22
OF_FIRST, SLEEP = 24, 27


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of the program that all these ops come from."""
    lines = PROGRAM.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, FILE, (len(PROGRAM), None, lines, FILE))


def verdict(*ranks: list[FakeOp], outcome: str = "stopped", **facts: Any) -> Finding:
    found = explain_run(Evidence(run(ranks, outcome=outcome, **facts))).verdict
    assert found is not None
    return found


def told(*ranks: list[FakeOp], outcome: str = "stopped", **facts: Any) -> tuple[str, tuple[int, ...]]:
    found = verdict(*ranks, outcome=outcome, **facts)
    return found.kind, found.ranks


def lines(finding: Finding) -> list[int]:
    return [site.line for site in finding.sites]


def at(line: int) -> Site:
    return Site(FILE, line, "step<script>")


def calls(op: str, *places: int, is_last_open: bool = False, **facts: Any) -> list[FakeOp]:
    """One call after the other, on these lines."""
    made = [FakeOp(op, n, n * 10, n * 10 + 5, line=line, **facts) for n, line in enumerate(places, 1)]
    return [*made[:-1], replace(made[-1], completed_ms=0)] if is_last_open else made


# Sends and receives.


def test_a_chain_of_receives_ends_at_the_rank_that_is_in_no_op() -> None:
    """No collective waits for it."""
    waiting = [FakeOp("recv", 1, 10, peer=0, line=LOOP)], [FakeOp("recv", 1, 5, peer=1, line=LOOP)]
    found = verdict([], *waiting, stack={0: (at(7),)})
    assert (found.kind, found.ranks, lines(found)[0]) == ("busy-rank", (0,), 7)
    # A send waits in the same way; and a rank that has ended is no busy one.
    assert told([FakeOp("send", 1, 10, peer=1)], [], stack={1: (at(7),)}) == ("busy-rank", (1,))
    assert told([FakeOp("recv", 1, 10, peer=1)], [], exit_code={1: 0}) == ("unmatched-recv", (0,))


def test_a_rank_that_exited_in_the_middle_explains_who_waits_for_its_send() -> None:
    """Not if it came to the end of the program, in `sys.exit(main())`."""
    waiting = [FakeOp("recv", 1, 10, peer=1, line=LOOP)]
    found = verdict(waiting, [], exit_code={1: 0}, exit_site={1: at(SHARE)})
    assert (found.kind, found.ranks, lines(found)) == ("rank-exited-early", (1,), [SHARE, LOOP])
    assert told(waiting, [], exit_code={1: 0}, exit_site={1: at(LOOP)}) == ("unmatched-recv", (0,))


def test_a_rank_that_exited_in_the_middle_explains_who_waits_for_any_rank() -> None:
    """A server takes what comes first, and rank 2 still waits for its answer. If all workers have exited, it is the
    receive that is one too many."""
    served = [FakeOp("recv", 1, 5, 6, peer=-1, line=LOOP), FakeOp("recv", 2, 7, peer=-1, line=LOOP)]
    worker = [FakeOp("send", 1, 5, 6, peer=0, line=LOSS), FakeOp("recv", 1, 7, peer=0, line=LOSS)]
    found = verdict(served, [], worker, exit_code={1: 0}, exit_site={1: at(SHARE)})
    assert (found.kind, found.ranks, lines(found)) == ("rank-exited-early", (1,), [SHARE, LOOP])
    gone = {"exit_code": {1: 0, 2: 0}, "exit_site": {1: at(SHARE), 2: at(SHARE)}}
    assert told(served, [], worker[:1], **gone) == ("unmatched-recv", (0,))


def test_later_sends_to_a_rank_that_is_astray_have_no_wrong_peer() -> None:
    """A stage of a pipeline hands on all its batches, and waits for the first to be received: rank 2 is alone in a
    barrier. In the twin nobody waits for a send to that rank, which is in a barrier with others."""
    later = FakeOp("send", 2, 12, peer=2, flags=ASYNC, line=LOSS)
    first = [FakeOp("recv", 1, 13, peer=1, line=LOOP)]
    stage = [FakeOp("send", 1, 11, waited_ms=13, peer=2, flags=ASYNC | WAITED, line=LOSS), later]
    last = [FakeOp("recv", 1, 10, peer=2, line=SHARE)]
    barrier = [FakeOp("barrier", 1, 14, line=LAST)]
    assert told(first, stage, barrier, last) == ("p2p-against-collective", (2,))
    assert told(first, [replace(later, seq=1), *barrier], barrier, barrier) == ("wrong-peer", (1,))


def test_a_send_to_a_rank_that_is_in_a_collective_only_waits() -> None:
    """The collective is what the two do not agree on."""
    send, reduce = [FakeOp("send", 1, 5, peer=1)], [FakeOp("all_reduce", 1, 10)]
    assert told(send, reduce) == ("p2p-against-collective", (0, 1))


def test_a_send_that_fails_since_another_rank_died_is_not_lost() -> None:
    """Rank 0 sends to rank 1, which sends to rank 2, which raised."""
    sends = [[FakeOp("send", 1, 10, peer=rank + 1, flags=ASYNC | FAILED, issued_ms=11)] for rank in range(2)]
    facts = {
        "error": {0: "RuntimeError: closed", 1: "RuntimeError: closed", 2: "ValueError: bad"},
        "exit_code": {0: 1, 1: 1, 2: 1},
        "ended_ns": {0: START_NS + 3 * 10**9, 1: START_NS + 2 * 10**9, 2: START_NS + 10**9},
    }
    assert told(*sends, [], outcome="failed", **facts) == ("rank-failed", (2,))


def rounds(count: int, op: str, peers: tuple[int, ...], line: int) -> list[FakeOp]:
    """Sends or receives that all ended, one with each peer in turn."""
    made = [FakeOp(op, turn, turn * 10, turn * 10 + 5, line=line) for turn in range(1, count + 1)]
    return [replace(each, peer=peer, entered_ms=each.entered_ms + peer) for each in made for peer in peers]


def test_a_server_that_receives_from_its_workers_in_turn_waits_for_the_one_that_sent_less() -> None:
    """Not for a wrong one, though the next worker has sent already."""
    server = [*rounds(3, "recv", (1, 2), FIRST), FakeOp("recv", 4, 41, peer=1, line=FIRST)]
    less, barrier = rounds(3, "send", (0,), SHARE), FakeOp("barrier", 1, 50, line=LAST)
    assert told(server, [*less, barrier], [*rounds(4, "send", (0,), SHARE), barrier]) == (
        "p2p-against-collective",
        (1,),
    )
    # Out of turn, it waits for the wrong one.
    twice = [*server[:-1], FakeOp("recv", 4, 41, 45, peer=1, line=FIRST), FakeOp("recv", 5, 46, peer=1, line=FIRST)]
    sent = [[*rounds(4, "send", (0,), SHARE), barrier] for _ in range(2)]
    assert told(twice, *sent) == ("wrong-peer", (0,))
    # Where all workers have sent as often, the server has waited once too often.
    assert told(server, [*less, barrier], [*less, barrier]) == ("p2p-against-collective", (0,))


def test_a_stage_that_left_out_its_send_is_named_and_not_the_one_that_waits_for_it() -> None:
    """Stage 2 has sent back four gradients, stage 1 only three, as stage 0 notices."""
    barrier, wanted = FakeOp("barrier", 1, 50, line=LAST), FakeOp("recv", 4, 41, peer=1, line=FIRST)
    first = [*rounds(3, "recv", (1,), FIRST), wanted]
    last = [*rounds(4, "send", (1,), SHARE), barrier]
    middle = [*rounds(4, "recv", (2,), FIRST), *rounds(3, "send", (0,), SHARE), barrier]
    assert told(first, middle, last) == ("p2p-against-collective", (1,))


def test_each_rank_is_told_in_its_own_op() -> None:
    """Rank 1 is in a send, rank 2 in a receive, while the others wait for both."""
    ranks = [[FakeOp("send", 1, 10, peer=0, line=FIRST)], [FakeOp("recv", 1, 10, peer=0, line=SHARE)]]
    found = explain_run(Evidence(run([[FakeOp("barrier", 1, 5, line=LAST)], *ranks], outcome="stopped"))).verdict
    assert found is not None
    assert "rank 1 in send" in found.message
    assert "rank 2 in recv" in found.message


def test_ranks_that_receive_from_each_other_have_no_wrong_peer() -> None:
    """Rank 3 sends to rank 0, which would come to that later."""
    both = [FakeOp("recv", 1, 10, peer=2)], [FakeOp("recv", 1, 9, peer=0)]
    assert told(both[0], [], both[1], [FakeOp("send", 1, 5, peer=0)]) == ("p2p-deadlock", (0, 2))


def test_who_is_still_in_an_earlier_call_has_no_wrong_peer() -> None:
    """Rank 2 skipped the scatter in which rank 1 waits for it, and which rank 0 has left behind."""
    scatter = FakeOp("scatter", 1, 10, 11, peer=1)
    done = [scatter, FakeOp("recv", 1, 15, peer=1, tag=1)]
    waits = [replace(scatter, completed_ms=0)]
    assert told(done, waits, [FakeOp("send", 1, 12, peer=0, tag=1)])[0] != "wrong-peer"


def test_a_send_to_a_rank_that_is_stuck_elsewhere_has_no_wrong_peer() -> None:
    """Ranks 2 and 3 do not agree on the root of their broadcast."""
    pair = {"pair": [2, 3]}
    roots = [[FakeOp("broadcast", 1, 20, peer=rank, group="pair")] for rank in (2, 3)]
    waiting = [FakeOp("recv", 1, 12, peer=1)], [FakeOp("send", 1, 11, peer=2)]
    assert told(*waiting, *roots, groups=pair) == ("mismatched-root", (2, 3))


def test_a_receive_at_another_distance_than_all_others_has_a_wrong_peer() -> None:
    """In a ring of five, rank 2 receives from rank 0. The sends of the others wait for it in a circle."""
    ranks = [
        [FakeOp("send", 1, rank, peer=(rank + 1) % 5), FakeOp("recv", 1, 10 + rank, 20, peer=(rank - 1) % 5)]
        for rank in range(5)
    ]
    ranks[2] = [replace(ranks[2][0], completed_ms=9, flags=ASYNC), FakeOp("recv", 1, 12, peer=0)]
    assert told(*ranks) == ("wrong-peer", (2,))


def test_the_first_stage_of_a_pipeline_receives_from_its_right_neighbour_alone() -> None:
    """Its first receive is of the way back, that of the others of the way there. Rank 2 sends its gradient too far."""
    there, back = 5, 9
    ranks = [
        [
            *([FakeOp("recv", 1, rank, 20, peer=rank - 1, line=there)] if rank else []),
            *([FakeOp("send", 1, rank, 20, peer=rank + 1, line=there + 1)] if rank < 3 else []),
        ]
        for rank in range(4)
    ]
    ranks[0] += [FakeOp("recv", 1, 30, peer=1, line=back)]
    ranks[1] += [FakeOp("recv", 1, 31, peer=2, line=back)]
    ranks[2] += [FakeOp("recv", 1, 32, 40, peer=3, line=back), FakeOp("send", 1, 41, peer=0, line=back + 1)]
    ranks[3] += [FakeOp("send", 1, 33, 40, peer=2, line=back + 1)]
    assert told(*ranks) == ("wrong-peer", (2,))


def test_distances_are_compared_under_a_tag() -> None:
    """Before, some ranks have received more than others."""
    rings = [[FakeOp("recv", turn, turn, turn + 1, peer=(rank - 1) % 4, tag=7) for turn in (1, 2)] for rank in range(4)]
    rings[1].insert(0, FakeOp("recv", 1, 0, 1, peer=3, tag=1))
    rings[2].append(FakeOp("recv", 1, 12, peer=0, tag=7))
    rings[0].append(FakeOp("send", 3, 11, peer=1, tag=7))
    waiting = rings[1]
    rings[1] = [*waiting, FakeOp("send", 3, 11, peer=2, tag=7)]
    assert told(*rings) == ("wrong-peer", (2,))
    # If nobody sends to it, it has no right peer either.
    rings[1] = [*waiting, FakeOp("barrier", 1, 11)]
    assert told(*rings)[0] != "wrong-peer"


def test_a_receive_from_any_rank_may_wait_for_another_tag() -> None:
    """There is no peer that could be wrong."""
    recv, send = [FakeOp("recv", 1, 9, peer=-1, tag=1)], [FakeOp("send", 1, 5, peer=0, tag=3)]
    assert told(recv, send) == ("tag-mismatch", (0, 1))


def test_a_circle_of_sends_explains_who_waits_for_it_in_a_collective() -> None:
    """Rank 2 came to its barrier first."""
    pair = [[FakeOp("send", 1, 5 + rank, peer=1 - rank)] for rank in range(2)]
    assert told(*pair, [FakeOp("barrier", 1, 1)]) == ("p2p-deadlock", (0, 1))


def test_a_receive_that_took_what_a_collective_sent() -> None:
    """Nobody sent to it, and yet it ended; now all wait for each other."""
    barrier = FakeOp("barrier", 1, 10, line=FIRST)
    received = [FakeOp("recv", 1, 5, 11, peer=2, flags=ASYNC), replace(barrier, entered_ms=12, line=LAST)]
    assert told(received, [barrier], [barrier]) == ("p2p-against-collective", (0,))


def test_a_send_of_a_ring_that_an_earlier_receive_took_shows_that_a_send_was_left_out() -> None:
    """Nobody has met on these lines before, but a line that sends and receives was meant for itself. Its twins: a
    receive that was left out; and a line that only sends, whose receiver expects another size."""
    ring = [FakeOp("send", 1, 20, 30, peer=1, line=LAST, shape=(6,)), FakeOp("recv", 1, 21, peer=1, line=LAST)]
    early = [FakeOp("recv", 1, 5, 30, peer=0, line=LOOP, size_bytes=8), FakeOp("recv", 2, 31, peer=0, line=LOOP)]
    assert told(ring, early) == ("unmatched-recv", (0,))
    taken = [FakeOp("send", 1, 5, peer=0, line=LOOP, size_bytes=8)]
    late = [replace(ring[0], completed_ms=0), replace(ring[1], completed_ms=30)]
    assert told(late, taken) == ("unmatched-send", (0,))
    assert told(ring[:1], early) == ("p2p-size", (0, 1))


# Collectives.


def test_the_call_that_is_too_many_is_named_where_it_was_made() -> None:
    """Barriers match by chance; only at the last one, the others have ended."""
    mine = calls("barrier", EXTRA, FIRST, LAST, is_last_open=True)
    others = calls("barrier", FIRST, LAST)
    found = verdict(others, mine, others, exit_code={0: 0, 2: 0})
    assert (found.kind, found.ranks, lines(found)[:2]) == ("missing-rank", (1,), [EXTRA, FIRST])


def test_the_call_that_was_left_out_is_named_where_it_is_missing() -> None:
    """The next call has the same shape, and only the one after it differs."""
    others = [*calls("all_reduce", LOSS, SHARE), FakeOp("all_reduce", 3, 40, line=FIRST, shape=(2,))]
    mine = [FakeOp("all_reduce", 1, 10, 15, line=SHARE), FakeOp("all_reduce", 2, 30, line=FIRST, shape=(2,))]
    others[1] = replace(others[1], completed_ms=0)
    found = verdict(others[:2], mine, others[:2])
    assert (found.kind, found.ranks, lines(found)[:2]) == ("missing-rank", (1,), [SHARE, LOSS])


def test_calls_that_stand_in_another_order_in_a_branch_are_swapped() -> None:
    """They have the same shape: nothing stops, and the sums are mixed up."""
    ranks = [calls("all_reduce", *(MINE if rank == 1 else THEIRS)) for rank in range(3)]
    assert told(*ranks, outcome="ok") == ("order-swap", (1,))
    # In the same order on other lines, nothing is.
    same = [calls("all_reduce", *((MINE[1], MINE[0]) if rank == 1 else THEIRS)) for rank in range(3)]
    assert explain_run(Evidence(run(same))).findings == []


def test_all_ranks_are_stuck_in_a_call_that_they_came_to_from_different_lines() -> None:
    """A barrier and a monitored_barrier are both recorded as barriers."""
    ranks = [[FakeOp("barrier", 1, 10 + rank, line=EXTRA if rank == 0 else FIRST)] for rank in range(3)]
    found = verdict(*ranks)
    assert (found.kind, found.ranks, lines(found)) == ("missing-rank", (0,), [EXTRA, FIRST])
    # In the branches of an `if`, other lines are the same call.
    branches = [[FakeOp("all_reduce", 1, 10 + rank, line=MINE[1] if rank == 0 else THEIRS[0])] for rank in range(3)]
    assert explain_run(Evidence(run(branches, outcome="stopped"))).findings == []


def test_a_rank_that_left_a_loop_may_have_left_it_at_its_break() -> None:
    """The line of the break is shown."""
    others = calls("all_reduce", LOSS, LOSS, is_last_open=True)
    mine = [*calls("all_reduce", LOSS), FakeOp("barrier", 2, 30, line=FIRST)]
    found = verdict(others, mine, others)
    assert (found.ranks, BREAK in lines(found)) == ((1,), True)


def test_the_first_of_several_calls_that_are_too_many_is_named() -> None:
    """Rank 0 evaluates a sharded model on the way: its calls match those of the next step by chance, until one does
    not. Lines that met before are those of a program in step: rank 0 takes another branch there in every turn."""

    def made(*turns: tuple[str, int]) -> list[FakeOp]:
        done = [FakeOp(op, n, n * 10, n * 10 + 5, line=line) for n, (op, line) in enumerate(turns, 1)]
        return [*done[:-1], replace(done[-1], completed_ms=0)]

    gather, scatter = "all_gather", "reduce_scatter"
    step = [(gather, LOOP), (gather, LOSS), (scatter, SHARE)]
    evaluated = [(gather, EXTRA), (gather, FIRST)]
    ranks = made(*step, *evaluated, *step[:1]), made(*step, *step)
    found = verdict(*ranks)
    assert (found.kind, found.ranks, lines(found)[:2]) == ("missing-rank", (0, 1), [EXTRA, LOOP])
    # Here the two branches meet in each turn, and rank 1 makes another op in the end.
    branches = [[(gather, line), (gather, LOSS)] * 2 for line in (OF_FIRST, SLEEP + 1)]
    found = verdict(made(*branches[0], (gather, OF_FIRST)), made(*branches[1], (scatter, SLEEP + 1)))
    assert "out of step" not in found.message


def test_a_rank_that_left_the_loop_of_its_group_has_not_taken_another_order_of_groups() -> None:
    """Ranks 0 and 1 have made three turns, and wait for all; rank 3 has made two, and rank 2 waits for it in the third.
    If they have made two, then rank 2 makes one too many; and if nobody else was there, both are named."""
    groups = {"low": [0, 1], "high": [2, 3]}

    def turns(group: str, count: int, is_last_open: bool = False) -> list[FakeOp]:
        return calls("all_reduce", *[LOSS] * count, group=group, is_last_open=is_last_open)

    last = FakeOp("all_reduce", 1, 50, line=LAST)
    high = turns("high", 3, is_last_open=True), [*turns("high", 2), last]
    found = verdict(*[[*turns("low", 3), last]] * 2, *high, groups=groups)
    assert (found.kind, found.ranks) == ("missing-rank", (3,))
    assert {LOSS, LAST, BREAK} <= set(lines(found))
    assert told(*[[*turns("low", 2), last]] * 2, *high, groups=groups) == ("missing-rank", (2,))
    assert told([last], [last], *high, groups=groups) == ("missing-rank", (2, 3))
    # Its twin: each of them would make the other's call later.
    swapped = [FakeOp("all_reduce", 1, 50, group="high", line=MINE[0])], [FakeOp("all_reduce", 1, 50, line=MINE[1])]
    assert told([last], [last], *swapped, groups=groups)[0] == "cross-group-deadlock"


def test_who_stands_before_the_making_of_a_group_has_not_left_that_out() -> None:
    """Rank 2 skipped the barrier, and waits for the others where the group is made."""
    waiting, group = [FakeOp("barrier", 1, 10, line=FIRST)], [FakeOp("new_group", 1, 12, line=GROUP, group="world")]
    world = {"world": range(3)}
    assert told(waiting, waiting, group, groups=world) == ("missing-rank", (2,))
    behind = [FakeOp("barrier", 1, 10, line=LAST)]
    assert told(group, group, behind, groups=world) == ("group-incomplete", (2,))


def test_who_makes_a_group_in_the_next_turn_has_left_a_loop_inside() -> None:
    """Rank 0 makes the second group while rank 1 is in the loop of the first."""
    groups = {"world": range(2)}
    made = [FakeOp("new_group", 1, 1, 2, line=MAKE, group="world")]
    again = [*made, FakeOp("all_reduce", 1, 5, 6, line=INNER), FakeOp("new_group", 2, 8, line=MAKE, group="world")]
    inside = [*made, FakeOp("all_reduce", 1, 5, 6, line=INNER), FakeOp("all_reduce", 2, 7, line=INNER)]
    assert told(again, inside, groups=groups) == ("missing-rank", (0, 1))
    # If most ranks make the group, the one in the loop did not.
    assert told(again, again, inside, groups={"world": range(3)})[0] == "group-incomplete"


def test_a_rank_that_has_begun_its_next_forward_has_left_out_what_comes_before() -> None:
    """The reducer waits there for the others, in no op."""
    forward = FakeOp("ddp_forward", 0, 5, 6, group="", line=LOOP)
    waiting = [forward, FakeOp("all_reduce", 1, 10, line=LOSS)]
    ahead = [forward, replace(forward, entered_ms=12, completed_ms=0)]
    stack = {"stack": {0: (at(LOOP),)}}
    assert told(ahead, waiting, waiting, **stack) == ("missing-rank", (0,))
    assert told(ahead[:1], waiting, waiting, **stack) == ("busy-rank", (0,))


def test_most_ranks_that_wait_in_a_forward_have_more_inputs() -> None:
    """The other one is past the loop."""
    forward = FakeOp("ddp_forward", 0, 5, 6, phase="forward", group="", line=LOOP)
    ahead = [forward, replace(forward, entered_ms=12, completed_ms=0)]
    behind = [forward, FakeOp("barrier", 1, 10, line=FIRST)]
    stack = {"stack": {0: (at(LOOP),), 1: (at(LOOP),)}}
    assert told(ahead, ahead, behind, **stack) == ("ddp-uneven-inputs", (2,))


def test_a_circle_is_told_of_the_ranks_in_it() -> None:
    """Ranks 0 and 1 wait for ranks 2 and 3, which wait for each other."""
    barrier = [FakeOp("barrier", 1, 5)]
    pair = {"pair": [2, 3]}
    recv, reduce = [FakeOp("recv", 1, 10, peer=3)], [FakeOp("all_reduce", 1, 11, group="pair")]
    assert told(barrier, barrier, recv, reduce, groups=pair) == ("p2p-against-collective", (2, 3))


def test_a_group_that_a_rank_did_not_make_explains_who_failed_since_others_ended() -> None:
    """Rank 0 needs no group and has ended, rank 1 makes the group, and rank 2 fails as nobody comes."""
    group = FakeOp("new_group", 1, 10, line=GROUP, group="world")
    failed = [FakeOp("all_reduce", 1, 12, flags=FAILED, issued_ms=13, line=LAST)]
    facts = {
        "exit_code": {0: 0, 2: 1},
        "error": {2: "RuntimeError: closed"},
        "ended_ns": {0: START_NS + 10**8, 2: START_NS + 2 * 10**8},
    }
    found = told(
        [replace(group, completed_ms=11)], [group], failed, outcome="failed", groups={"world": range(3)}, **facts
    )
    assert found == ("group-incomplete", (2,))


def test_who_was_out_of_step_before_did_not_leave_out_a_group() -> None:
    """Rank 1 has made a call too many, and is still in the loop when the others make their next group."""
    groups = {"world": range(3)}
    made = FakeOp("new_group", 1, 1, 2, line=MAKE, group="world")
    reduced = calls("all_reduce", INNER, INNER, INNER)
    ahead = [made, *reduced, FakeOp("new_group", 2, 60, line=MAKE, group="world")]
    behind = [made, reduced[0], replace(reduced[1], line=EXTRA), reduced[2], FakeOp("all_reduce", 4, 50, line=INNER)]
    assert told(ahead, behind, ahead, groups=groups) == ("missing-rank", (1,))


def test_who_is_lost_in_init_since_another_has_ended_is_no_incomplete_world() -> None:
    """All came to it, and two got through: one of them is missing in the call after it."""
    init = FakeOp("init", 1, 1, 5, group="world")
    failed = [replace(init, completed_ms=0, flags=FAILED)]
    waiting = [init, FakeOp("all_reduce", 1, 8, flags=FAILED, issued_ms=9, line=LOSS)]
    facts = {
        "exit_code": {0: 1, 1: 1, 2: 0},
        "error": {0: "RuntimeError: connectFullMesh", 1: "RuntimeError: closed"},
        "ended_ns": {0: START_NS + 2 * 10**8, 1: START_NS + 3 * 10**8, 2: START_NS + 10**8},
    }
    found = told(failed, waiting, [init], outcome="failed", groups={"world": range(3)}, **facts)
    assert found == ("missing-rank", (2,))


def test_ranks_that_did_not_get_through_init_explain_who_waits_for_them_alone() -> None:
    """Rank 2 found others at addresses of an earlier group. That it then waits for them says nothing new."""
    init = FakeOp("init", 1, 1, 5, group="world")
    failed = [replace(init, completed_ms=0, flags=FAILED)]
    waiting = [init, FakeOp("all_reduce", 1, 8, flags=FAILED, issued_ms=9, line=LOSS)]
    facts = {
        "exit_code": dict.fromkeys(range(3), 1),
        "error": dict.fromkeys(range(3), "RuntimeError: closed"),
        "ended_ns": {0: START_NS + 10**8, 1: START_NS + 10**8, 2: START_NS + 2 * 10**8},
    }
    ended = run([failed, failed, waiting], outcome="failed", groups={"world": range(3)}, **facts)
    found = explain_run(Evidence(ended)).findings
    assert [(finding.kind, finding.ranks) for finding in found] == [("world-incomplete", (0, 1))]
    assert "did not find each other" in found[0].message


def test_a_rank_that_polls_a_later_call_has_left_out_the_one_before() -> None:
    """It is in no op, and yet not busy."""
    pair = {"pair": [0, 1]}
    polls = [FakeOp("all_reduce", 1, 20, flags=ASYNC, line=LAST)]
    waiting = [FakeOp("broadcast", 1, 10, group="pair", peer=1, line=SHARE)]
    stack = {"stack": {0: (at(LOOP),)}}
    assert told(polls, waiting, polls, groups=pair, **stack) == ("missing-rank", (0,))
    assert told([], waiting, polls, groups=pair, **stack) == ("busy-rank", (0,))


def test_who_waits_for_a_send_of_a_rank_that_polls_waits_in_vain() -> None:
    """It is in no op, and has left out the send before."""
    polls = [FakeOp("all_reduce", 1, 20, flags=ASYNC, line=LAST)]
    waiting = [FakeOp("recv", 1, 10, peer=0, line=SHARE)]
    assert told(polls, waiting, stack={0: (at(LOOP),)}) == ("unmatched-recv", (1,))


def test_a_rank_at_its_end_counts_like_one_that_has_ended() -> None:
    """Rank 0 makes a barrier more than rank 2, which has ended, and rank 1, which was about to."""
    mine = calls("barrier", EXTRA, LAST, is_last_open=True)
    others = calls("barrier", LAST)
    found = verdict(mine, others, others, exit_code={2: 0})
    assert (found.kind, found.ranks) == ("missing-rank", (0,))


def test_of_two_ends_of_a_transfer_the_one_on_another_line_is_odd() -> None:
    """Rank 1 sends one row more to rank 2 than that expects."""
    splits = ("single", (1, 1, 1), (1, 1, 1), (3,))
    ranks = [[FakeOp("all_to_all", 1, 10, shape=(3,), splits=splits, line=LOSS)] for _ in range(3)]
    ranks[1] = [replace(ranks[1][0], shape=(4,), splits=("single", (1, 1, 1), (1, 1, 2), (3,)), line=SHARE)]
    assert told(*ranks)[1] == (1,)
    ranks[1] = [replace(ranks[1][0], line=LOSS)]
    assert told(*ranks)[1] == (1, 2)


def test_a_rank_that_is_killed_in_an_op_that_it_polls_died_of_what_differs_there() -> None:
    """gloo aborts it. It had not called wait()."""
    ranks = [[FakeOp("all_reduce", 1, 10, 90 * (rank > 0), flags=ASYNC)] for rank in range(3)]
    ranks[1] = [replace(ranks[1][0], dtype="float64", size_bytes=8000)]
    facts = {"exit_code": {0: -6}, "gone_ns": {0: START_NS + 10**8}}
    assert told(*ranks, outcome="failed", **facts) == ("mismatched-dtype", (1,))


def test_a_rank_that_aborts_in_another_op_than_the_others_was_out_of_step() -> None:
    """It has skipped what they are in. Where they are in the same op, or it is killed, the death counts."""
    groups = {"world": range(3)}
    module, gather = [FakeOp("ddp", 1, 12, group="world", line=LAST)], [FakeOp("all_gather", 1, 10, line=FIRST)]
    aborts = {"exit_code": {2: -6}, "gone_ns": {2: START_NS + 10**8}, "outcome": "failed", "groups": groups}
    assert told(gather, gather, module, **aborts)[1] == (2,)
    assert told(gather, gather, module, **aborts)[0] != "rank-killed"
    assert told(gather, gather, gather, **aborts) == ("rank-killed", (2,))
    assert told(gather, gather, module, **(aborts | {"exit_code": {2: -9}})) == ("rank-killed", (2,))


def test_of_all_turns_the_rank_is_odd_that_takes_part_in_most_bad_transfers() -> None:
    """Rank 2 expects 2 of everybody. In the first turn only rank 0 sends it another number, in the second only rank
    1."""

    def turn(number: int, rank: int) -> FakeOp:
        gives = [1, 1, 1 if rank == number - 1 else 2]
        takes = (2, 2, 2) if rank == 2 else (1, 1, 1)
        splits = ("single", takes, gives, (sum(takes),))
        return FakeOp("all_to_all", number, number * 10, shape=(sum(gives),), splits=splits, line=LOSS)

    ranks = [[turn(1, rank), turn(2, rank)] for rank in range(3)]
    assert told(*ranks) == ("mismatched-splits", (2,))
    assert told(*(ops[:1] for ops in ranks)) == ("mismatched-splits", (0, 2))  # one turn does not tell


def test_a_rank_that_goes_on_with_the_next_tensor_of_a_loop_has_left_one_out() -> None:
    """All on one line. That it makes these ops in this order is known from an earlier turn."""

    def reduces(*sizes: int) -> list[FakeOp]:
        made = [FakeOp("all_reduce", n, n * 10, n * 10 + 5, shape=(size,)) for n, size in enumerate(sizes, 1)]
        return [*made[:-1], replace(made[-1], completed_ms=0)]

    others, left_out = reduces(10, 20, 30, 10, 20), reduces(10, 20, 30, 10, 30)
    assert told(others, left_out, others) == ("missing-rank", (1,))
    two = reduces(10, 20, 30, 40, 10, 20), reduces(10, 20, 30, 40, 10, 40)
    assert told(two[0], two[1], two[0]) == ("missing-rank", (1,))
    assert told(others, reduces(10, 20, 30, 10, 40), others) == ("mismatched-shape", (1,))
    assert told(reduces(20), reduces(30), reduces(20)) == ("mismatched-shape", (1,))


def test_a_group_of_several_threads_is_the_cause_also_if_its_first_calls_match_by_chance() -> None:
    """Rank 1's two threads make their calls in another order: first with as many bytes, then with fewer."""
    bytes_of = {1: (4000, 4000), 2: (4000, 4000), 3: (4000, 200), 4: (200, 4000)}

    def made(is_swapped: bool) -> list[FakeOp]:
        ops = []
        for n, sizes in bytes_of.items():
            of_thread = (n % 2 == 0) != is_swapped
            facts = {"thread": 1, "line": SHARE} if of_thread else {"thread": 0, "line": LOSS}
            size = sizes[is_swapped]
            done_ms = 0 if n > 2 else 90
            ops.append(FakeOp("all_reduce", n, n * 10, done_ms, shape=(size // 4,), size_bytes=size, **facts))
        return ops

    facts = {"exit_code": {2: -6}, "gone_ns": {2: START_NS + 10**8}, "outcome": "failed"}
    assert told(made(False), made(True), made(False), **facts) == ("concurrent-calls", (1,))


def test_a_rank_that_gave_up_on_another_call_failed_for_that() -> None:
    """Rank 1 has left out their barrier with a timeout: they fail for that, and not by themselves."""
    gave_up = [FakeOp("barrier", 1, 10, flags=FAILED, line=FIRST)]
    other = [FakeOp("all_reduce", 1, 10, line=LOSS)]
    ends = {"error": {0: "RuntimeError: timed out", 2: "RuntimeError: timed out"}, "exit_code": {0: 1, 2: 1}}
    found = explain_run(Evidence(run([gave_up, other, gave_up], outcome="failed", **ends)))
    assert [(finding.kind, finding.ranks) for finding in found.findings] == [("missing-rank", (1,))]


def test_a_send_to_the_wrong_rank_explains_a_circle_that_its_rank_is_in() -> None:
    """A ring to the right, in which rank 2 sends to rank 1: that one's next send waits for rank 2, too."""

    def turn(rank: int, to: int, sent_ms: int = 15) -> list[FakeOp]:
        recv = FakeOp("recv", 1, 10, 15, peer=(rank - 1) % 4, flags=ASYNC, line=SHARE)
        return [recv, FakeOp("send", 1, 11, sent_ms, peer=to, line=SHARE)]

    ranks = [turn(0, 1), turn(1, 2), turn(2, 1, sent_ms=0)]
    ranks[1].append(FakeOp("send", 2, 20, peer=2, line=SHARE))
    ranks.append([FakeOp("send", 1, 11, 15, peer=0, line=SHARE), FakeOp("recv", 1, 16, peer=2, line=SHARE)])
    assert told(*ranks) == ("wrong-peer", (2,))


def exchange(turn: int, peer: int, seq: int = 1, is_open: bool = False) -> list[FakeOp]:
    """A send and a receive that a rank begins together, and waits for."""
    began_ms, ended_ms = turn * 10, 0 if is_open else turn * 10 + 5
    return [
        FakeOp("send", seq, began_ms, ended_ms, peer=peer, line=SHARE, waited_ms=began_ms + 1 if is_open else 0),
        FakeOp("recv", seq, began_ms, ended_ms, peer=peer, line=SHARE, flags=ASYNC),
    ]


def test_who_names_a_rank_that_is_in_another_pair_in_this_turn_has_a_wrong_peer() -> None:
    """Gossip: in the second turn, rank 3 names rank 0 instead of rank 1. Rank 0 is past that turn, and waits for
    rank 1, so that all wait in a circle."""
    ranks = [[*exchange(1, peer=1)], [*exchange(1, peer=0)], [*exchange(1, peer=3)], [*exchange(1, peer=2)]]
    ranks[0] += [*exchange(2, peer=2), *exchange(3, peer=1, seq=2, is_open=True)]
    ranks[1] += exchange(2, peer=3, is_open=True)
    ranks[2] += exchange(2, peer=0)
    ranks[3] += exchange(2, peer=0, is_open=True)
    assert told(*ranks) == ("wrong-peer", (3,))


def test_who_waits_in_a_circle_without_pairs_has_no_wrong_peer() -> None:
    """The same circle, where the turn before was a ring: nothing says that rank 3 is to name another rank."""
    ranks = [exchange(1, peer=(rank + 1) % 4) for rank in range(4)]
    for turn in ranks:
        turn[1] = replace(turn[1], peer=(turn[0].peer - 2) % 4)
    ranks[0] += [*exchange(2, peer=2), *exchange(3, peer=1, seq=2, is_open=True)]
    ranks[1] += exchange(2, peer=3, is_open=True)
    ranks[2] += exchange(2, peer=0)
    ranks[3] += exchange(2, peer=0, seq=2, is_open=True)
    assert told(*ranks) == ("p2p-deadlock", (0, 1, 3))


def test_a_send_to_a_rank_that_left_their_loop_and_ended_has_no_wrong_peer() -> None:
    """Rank 2's last barrier met that of the others' loop. Rank 0 waits for rank 1, which sends to rank 2."""
    barrier = FakeOp("barrier", 1, 10, 15, line=LOSS)
    ranks = [
        [barrier, FakeOp("recv", 1, 20, peer=1, line=LOSS)],
        [barrier, FakeOp("send", 1, 20, peer=2, line=LOSS)],
        [replace(barrier, line=LAST)],
    ]
    assert told(*ranks, exit_code={2: 0}) == ("missing-rank", (2,))
    assert told(*ranks[:2], [barrier], exit_code={2: 0}) == ("wrong-peer", (1,))  # nothing says that it left


def test_of_a_chain_of_sends_the_one_to_a_rank_in_a_collective_is_named() -> None:
    """Rank 2 has left out its receive, as all others have theirs by now."""
    ranks = [[FakeOp("send", 1, 10, peer=rank + 1, line=SHARE)] for rank in range(2)]
    ranks += [[FakeOp("all_reduce", 1, 20, line=LAST)] for _ in range(4)]
    assert told(*ranks) == ("p2p-against-collective", (1,))


def test_a_call_that_most_ranks_have_passed_is_one_too_many() -> None:
    """Rank 2 alone waits in it."""
    extra = [FakeOp("barrier", 1, 10, line=FIRST)]
    stacks = {"stack": {0: (at(LAST),), 1: (at(LAST),)}}
    assert told([], [], extra, **stacks) == ("missing-rank", (2,))
    assert told([], extra, extra, stack={0: (at(LAST),)}) == ("missing-rank", (0,))


def test_a_rank_in_a_branch_with_such_a_call_of_its_own_has_not_passed_it() -> None:
    """It waits there for a file that never comes."""
    first = [FakeOp("barrier", 1, 10, line=OF_FIRST)]
    assert told(first, [], [], stack={1: (at(SLEEP),), 2: (at(SLEEP),)}) == ("busy-rank", (1, 2))


# Ranks that are slow.


def slow_by(delays_ms: list[int], places: list[int]) -> list[list[FakeOp]]:
    """Rank 1 is late by so much in each call, on these lines."""
    now, ranks = 0.0, ([], [])
    for number, (delay_ms, line) in enumerate(zip(delays_ms, places, strict=True), 1):
        ranks[0].append(FakeOp("all_reduce", number, now + 1, now + delay_ms + 2, line=line))
        ranks[1].append(FakeOp("all_reduce", number, now + delay_ms, now + delay_ms + 2, line=line))
        now += delay_ms + 10
    return list(ranks)


def test_five_delays_on_one_line_are_a_habit() -> None:
    """They need not be quite equal."""
    assert told(*slow_by([150, 160, 150, 149, 155], [LOSS] * 5), outcome="ok") == ("straggler", (1,))


def test_a_delay_that_the_others_wait_for_in_a_forward_counts() -> None:
    """Rank 1 is late by 120 ms in each of five steps. In the second one, DDP's reducer waits for it in the forward, in
    C++: without that, half a second would be chance."""

    def steps(rank: int, count: int) -> list[FakeOp]:
        ops, now = [], 0.0
        for n in range(1, count + 1):
            late = now + 120
            begin = late if rank else now
            end = late + 2 if n == 2 else begin + 2
            ops.append(FakeOp("ddp_forward", 0, begin, end, phase="forward", group="", line=LOOP))
            ops.append(FakeOp("all_reduce", n, end + 1, late + 5, line=LOSS))
            now = late + 10
        return ops

    assert told(steps(0, 5), steps(1, 5), outcome="ok") == ("straggler", (1,))
    assert explain_run(Evidence(run([steps(0, 4), steps(1, 4)]))).findings == []


def test_who_is_late_in_a_subgroup_may_take_turns_with_its_partner_in_the_world() -> None:
    """In the call after it, the one or the other is the last."""
    places = [LOSS, SHARE] * 3 + [LOSS] * 2
    assert told(*slow_by([150, 300] * 3 + [150] * 2, places), outcome="ok") == ("straggler", (1,))


def test_delays_here_and_there_are_chance() -> None:
    """On a busy machine, a rank of a short run is late now and then."""
    scattered = slow_by([150, 160, 150, 149, 155], [LOSS, SHARE, FIRST, LAST, EXTRA])
    uneven = slow_by([330, 54, 26, 16, 11, 9, 3, 2], [LOSS] * 8)
    few = slow_by([30] * 15, [LOSS] * 15)
    assert told(*slow_by([30] * 60, [LOSS] * 60), outcome="ok") == ("straggler", (1,))
    for ranks in (scattered, uneven, few):
        assert explain_run(Evidence(run(ranks))).findings == []


def in_turns(late_ms: list[list[float]]) -> list[list[FakeOp]]:
    """By call: by how much each rank is late."""
    now, ranks = 0.0, [[] for _ in late_ms[0]]
    for number, delays_ms in enumerate(late_ms, 1):
        for ops, delay_ms in zip(ranks, delays_ms, strict=True):
            ops.append(FakeOp("all_reduce", number, now + delay_ms, now + max(delays_ms) + 1, line=LOSS))
        now += max(delays_ms) + 2
    return ranks


def test_who_is_the_last_in_its_share_of_the_calls_is_late_by_chance() -> None:
    """Each rank of a busy machine is the last in turn, now by more, now by less, and one of them has lost most by then.
    Unless its delays are of another size than those of the others."""

    def late_ms(turn: int, rank: int, more_ms: int) -> float:
        return (5 + turn * 7 % 17 + more_ms * (rank == 3)) * (turn % 4 == rank)

    chance, habit = ([[late_ms(turn, rank, more) for rank in range(4)] for turn in range(200)] for more in (5, 60))
    assert explain_run(Evidence(run(in_turns(chance)))).findings == []
    assert told(*in_turns(habit), outcome="ok") == ("straggler", (3,))


def pipeline(computes_ms: float, first: int = 0) -> list[list[FakeOp]]:
    """The first of two stages hands over a batch and waits for its gradients, for which the second one computes."""
    ops: tuple[list[FakeOp], list[FakeOp]] = [], []
    now = 0.0
    for n in range(1, 31):
        came = now + 40  # messages take their time
        back = came + computes_ms
        ops[0].append(FakeOp("send", n, now, now + 1, peer=first + 1, line=LOOP))
        ops[0].append(FakeOp("recv", n, now + 5, back + 40, peer=first + 1, line=LOSS))
        ops[1].append(FakeOp("recv", n, now, came, peer=first, line=SHARE))
        ops[1].append(FakeOp("send", n, back, back + 40, peer=first, line=FIRST))
        now = back + 46
    return list(ops)


def test_stages_that_wait_for_each_other_in_turn_are_no_stragglers() -> None:
    """Rank 0 waits for gradients, which come as fast as rank 1 can compute and send them. Its twin computes much longer
    than rank 0."""
    assert explain_run(Evidence(run(pipeline(10)))).findings == []
    found = verdict(*pipeline(200), outcome="ok")
    assert (found.kind, found.ranks) == ("straggler", (1,))
    assert "kept others waiting in 30 sends and receives" in found.message


def test_a_stage_that_no_other_rank_can_be_compared_with_is_blamed_for_nothing() -> None:
    """It may have been given more work than the stage before it: that is advice, and no verdict while the job runs. Its
    twin is slower than the same stage of another pipeline; another twin is a rank that the others wait for in
    collectives."""
    alone = explain_run(Evidence(run(pipeline(200), outcome="running", cut_ms=8000)))
    assert [(each.kind, each.ranks, each.effect) for each in alone.findings] == [("straggler", (1,), "advice")]
    assert alone.verdict is None
    assert "no other rank has this part of the program" in alone.findings[0].message
    compared = [*pipeline(200), *pipeline(10, first=2)]
    late = slow_by([150] * 8, [LOSS] * 8)
    for ranks, at_ms in ((compared, 8000), (late, 1300)):
        found = explain_run(Evidence(run(ranks, outcome="running", cut_ms=at_ms))).verdict
        assert found is not None
        assert (found.kind, found.ranks, found.effect) == ("straggler", (1,), "slow")


def test_a_rank_on_which_each_op_ends_last_is_no_straggler() -> None:
    """It has no time of its own between its ops, and comes last to the next one. Its twin computes there."""

    def tight(held_ms: float, computes_ms: float) -> list[list[FakeOp]]:
        ranks, now = [[] for _ in range(3)], [0.0] * 3
        for n in range(1, 101):
            met = max(now)
            for rank, ops in enumerate(ranks):
                end = met + 5 + held_ms * (rank == 1)
                ops.append(FakeOp("all_reduce", n, now[rank], end, line=LOSS))
                now[rank] = end + 1 + computes_ms * (rank == 1)
        return ranks

    assert explain_run(Evidence(run(tight(10, 0)))).findings == []
    assert told(*tight(0, 10), outcome="ok") == ("straggler", (1,))


def test_a_leader_that_is_late_since_it_receives_first_is_no_straggler() -> None:
    """It sends to all what it has received from each of them. Its twin computes before that."""

    def rounds(computes_ms: float) -> list[list[FakeOp]]:
        ranks, now = [[] for _ in range(3)], 0.0
        for n in range(1, 31):
            for worker in (1, 2):
                ranks[worker].append(FakeOp("send", n, now, now + 1, peer=0, line=LOOP))
                ranks[0].append(FakeOp("recv", n, now + 20 * worker - 18, now + 20 * worker, peer=worker, line=LOOP))
            told_ms = now + 41 + computes_ms
            for rank, ops in enumerate(ranks):
                ops.append(FakeOp("broadcast", n, told_ms if rank == 0 else now + 2, told_ms + 1, peer=0, line=SHARE))
            now = told_ms + 3
        return ranks

    assert explain_run(Evidence(run(rounds(0)))).findings == []
    assert told(*rounds(100), outcome="ok") == ("straggler", (0,))


# Groups of a mesh.


def test_where_sibling_groups_were_ended_what_came_next_before_tells_who_is_odd() -> None:
    """Rank 3 leaves the loop and gathers; ranks 0 and 1 were ended before their next call, or some calls earlier.
    Without earlier turns, without sibling groups, or if these do something else, nobody knows which of the two is
    odd."""
    groups = {"low": [0, 1], "high": [2, 3]}

    def turns(group: str, count: int, *last: FakeOp) -> list[FakeOp]:
        made = []
        for n in range(count):
            made.append(FakeOp("all_gather", 2 * n + 1, n * 20, n * 20 + 5, group=group, line=LOOP))
            made.append(FakeOp("reduce_scatter", 2 * n + 2, n * 20 + 6, n * 20 + 9, group=group, line=LOSS))
        made.append(FakeOp("all_gather", 2 * count + 1, count * 20, count * 20 + 5, group=group, line=LOOP))
        return [*made, *(replace(op, seq=2 * count + 2, entered_ms=count * 20 + 6, group=group) for op in last)]

    stays, leaves = FakeOp("reduce_scatter", 0, 0, line=LOSS), FakeOp("all_gather", 0, 0, line=GROUP)

    def ranks(count: int) -> list[list[FakeOp]]:
        return [*[turns("low", count)] * 2, turns("high", count, stays), turns("high", count, leaves)]

    behind = turns("low", 2)[:3]
    elsewhere = [replace(op, line=MAKE) for op in behind]
    assert told(*ranks(2), groups=groups)[1] == (3,)
    assert told(behind, behind, *ranks(2)[2:], groups=groups)[1] == (3,)
    assert told(elsewhere, elsewhere, *ranks(2)[2:], groups=groups)[1] == (2, 3)
    assert told(*ranks(0), groups=groups)[1] == (2, 3)
    assert told([], [], *ranks(2)[2:], groups=groups)[1] == (2, 3)
    # Siblings that came to the call say more than earlier turns.
    low = turns("low", 2, replace(leaves, completed_ms=60))
    assert told(low, low, *ranks(2)[2:], groups=groups)[1] == (2,)


def test_calls_in_another_order_without_a_majority_are_not_told_as_those_of_others() -> None:
    one, other = (calls("all_reduce", *places, shape=(1,)) for places in ((MINE), (MINE[1], MINE[0])))
    message = verdict(one, other, outcome="ok").message
    assert "ranks 0-1 made the same 2 calls, some of them in another order" in message
    assert "as the others" in verdict(one, other, one, outcome="ok").message


def test_the_call_that_was_left_out_is_named_also_if_a_loop_has_many_of_its_kind() -> None:
    """FSDP's layers in a forward, of which rank 1 leaves one out; its backward makes the same calls again, on one
    line. Where no line differs, the call that differs is all that is known."""
    gathers = [*[LOOP] * 4, *[SHARE] * 4] * 2
    kinds = ["all_gather"] * 7 + ["reduce_scatter"]

    def made(places: list[int], names: list[str]) -> list[FakeOp]:
        return [
            FakeOp(op, n, n * 10, n * 10 + 5, line=line)
            for n, (op, line) in enumerate(zip(names, places, strict=True), 1)
        ]

    usual = made(gathers, kinds * 2)[:-1]
    short = made(gathers[:8] + gathers[9:], kinds + kinds[1:])
    others = [*usual[:-1], replace(usual[-1], completed_ms=0)]
    found = verdict(others, [*short[:-1], replace(short[-1], completed_ms=0)], others)
    assert (found.kind, found.ranks) == ("missing-rank", (1,))
    assert LOOP in lines(found)


def test_the_rank_that_chose_another_group_on_a_line_is_named_though_a_call_met_by_chance() -> None:
    """On a mesh of two by two, rank 3 reduces over its column where the others reduce over their rows. Its twin: all
    ranks take the groups in another order, and nobody stands out."""
    groups = {"row 0": [0, 1], "row 1": [2, 3], "column 0": [0, 2], "column 1": [1, 3]}

    def op(seq: int, group: str, line: int, end: float = 0) -> FakeOp:
        return FakeOp("all_reduce", seq, seq * 10 + line, end, group=group, line=line)

    ranks = [
        [op(1, "row 0", LOOP, 20), op(1, "column 0", LOSS)],
        [op(1, "row 0", LOOP, 20), op(1, "column 1", LOSS, 30), op(2, "row 0", LOOP)],
        [op(1, "row 1", LOOP)],
        [op(1, "column 1", LOOP, 30), op(2, "column 1", LOSS)],
    ]
    found = verdict(*ranks, groups=groups)
    assert (found.kind, found.ranks) == ("cross-group-deadlock", (3,))
    assert LOOP in lines(found)
    ring = [op(1, name, LOOP) for name in ("row 0", "column 1", "column 0", "row 1")]
    assert told(*([each] for each in ring), groups=groups) == ("cross-group-deadlock", (0, 1, 2, 3))


def test_a_receive_in_a_circle_of_groups_is_no_choice_of_a_group() -> None:
    """Rank 1 receives from rank 0 where the others of its group broadcast, while the ranks outside of the group wait in
    the next call of all."""
    groups = {"0": [0, 1, 2, 3, 4, 5], "inner": [0, 1, 3, 5]}

    def op(name: str, seq: int, line: int, end: float = 0, group: str = "inner") -> FakeOp:
        return FakeOp(name, seq, seq * 10, end, group=group, line=line)

    begun = op("all_reduce", 1, LOSS, 15)
    ahead = [begun, op("broadcast", 2, SHARE, 25), op("all_reduce", 3, LOSS)]
    receives = [begun, FakeOp("recv", 1, 20, peer=0, line=LOOP)]
    outside = [op("broadcast", 1, FIRST, group="0")]
    found = verdict(ahead, receives, outside, ahead, outside, [begun, op("broadcast", 2, SHARE)], groups=groups)
    assert (found.kind, found.ranks) == ("p2p-against-collective", (1,))
    assert LOOP in lines(found)


def test_who_calls_init_once_more_is_refused_by_torch_and_still_has_a_group() -> None:
    """Not so where the group was destroyed before."""
    init = FakeOp("init", 1, 1, 2, group="world")
    again = replace(init, seq=2, entered_ms=5, completed_ms=0, flags=FAILED)
    both = [init, again, FakeOp("all_reduce", 1, 10, 12, line=LOSS)]
    destroyed = [init, FakeOp("destroy", 1, 3, 4, group="world"), again]
    for ranks, expected in (([both, both], []), ([destroyed, destroyed], ["world-incomplete"])):
        found = explain_run(Evidence(run(ranks, outcome="ok", groups={"world": range(2)}))).findings
        assert [each.kind for each in found if not each.is_advice] == expected


def test_who_forms_a_group_after_a_failed_init_has_handled_the_error() -> None:
    """A program may try one backend, and take another where that fails; but not if nothing follows."""
    failed = FakeOp("init", 1, 1, flags=FAILED, group="world")
    formed = [failed, FakeOp("init", 2, 8, 9, group="world"), FakeOp("all_reduce", 1, 10, 12, line=LOSS)]
    for ranks, expected in (([formed, formed], []), ([[failed], [failed]], ["world-incomplete"])):
        found = explain_run(Evidence(run(ranks, outcome="ok", groups={"world": range(2)}))).findings
        assert [each.kind for each in found if not each.is_advice] == expected

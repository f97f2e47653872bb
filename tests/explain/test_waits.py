"""Who waited for whom, from ops whose times are known."""

from dataclasses import replace

import numpy as np
import pytest

from rollcall.explain import costs
from rollcall.explain.evidence import Evidence
from rollcall.record import ring_format
from tests.report.rings import FakeOp, run

ASYNC = ring_format.ASYNC | ring_format.WAITED


def ms(values: np.ndarray) -> list[float]:
    return [round(float(value) / 1e6, 3) for value in values]


def reduces(*arrivals: float, end: float = 40) -> Evidence:
    """One all_reduce, at which each rank arrives at its own time."""
    return Evidence(run([[FakeOp("all_reduce", 1, at, end)] for at in arrivals]))


def test_all_ranks_of_a_collective_wait_for_the_last() -> None:
    """A rank waits until the last has arrived, and communicates from then on."""
    found = reduces(0, 30, 10).intervals
    assert ms(found.waiting_ns) == [30, 0, 20]
    assert ms(found.communicating_ns) == [10, 10, 10]
    assert found.last.tolist() == [1, 1, 1]


def test_the_matrix_has_a_line_for_who_waits_and_a_column_for_whom() -> None:
    """Seconds; caused and suffered are the sums of its columns and lines."""
    waits = reduces(0, 30, 10).waits
    matrix, step = waits.matrix(64)
    assert step == 1
    assert matrix.tolist() == [[0, pytest.approx(0.03), 0], [0, 0, 0], [0, pytest.approx(0.02), 0]]
    assert waits.caused_s.tolist() == matrix.sum(axis=0).tolist()
    assert waits.suffered_s.tolist() == matrix.sum(axis=1).tolist()


def test_many_ranks_share_a_line_of_the_matrix() -> None:
    """What is lost of the detail is not lost of the sum."""
    waits = reduces(0, 0, 0, 30).waits
    matrix, step = waits.matrix(2)
    assert step == 2
    assert matrix.tolist() == [[0, pytest.approx(0.06)], [0, pytest.approx(0.03)]]


def test_without_the_last_rank_a_call_waits_for_the_second_last() -> None:
    """The run is shorter by the time between these two, not by all that the others waited."""
    waits = reduces(0, 30, 10).waits
    assert waits.saved_s.tolist() == pytest.approx([0, 0.02, 0])


def test_two_that_are_late_together_save_nothing_alone() -> None:
    """Where another rank is as late, it makes no difference that one is in time."""
    waits = reduces(0, 30, 29.999).waits
    assert waits.saved_s.max() == pytest.approx(0.000001)


def test_neighbours_that_wait_at_the_same_time_count_once() -> None:
    """A stage that is 20 ms late makes the stages before and after it wait: the run would be 20 ms shorter, not 40."""
    before = [FakeOp("send", 1, 0, 21, peer=1)]
    late = [FakeOp("recv", 1, 20, 21, peer=0), FakeOp("send", 1, 21, 22, peer=2)]
    after = [FakeOp("recv", 1, 0, 22, peer=1)]
    waits = Evidence(run([before, late, after])).waits
    assert waits.caused_s.tolist() == pytest.approx([0, 0.041, 0])
    assert waits.saved_s.tolist() == pytest.approx([0, 0.021, 0])
    assert waits.saved_without([1]) == pytest.approx(0.021)


def test_one_delay_is_not_counted_for_each_async_op() -> None:
    """Of three ops that a late rank issues at once, the others are blocked in the first only."""
    late = [FakeOp("all_reduce", n, 20, 21, waited_ms=20.5, flags=ASYNC) for n in (1, 2, 3)]
    early = [FakeOp("all_reduce", n, 0, 21, waited_ms=1 if n == 1 else 21, flags=ASYNC) for n in (1, 2, 3)]
    waits = Evidence(run([early, late])).waits
    assert waits.caused_s.tolist() == pytest.approx([0, 0.019])
    assert waits.saved_s.tolist() == pytest.approx([0, 0.019])


def test_a_broadcast_waits_for_its_root() -> None:
    """The others wait for the root, and the root for nobody."""
    times = ((10, 11), (0, 12), (50, 51))
    evidence = Evidence(run([[FakeOp("broadcast", 1, at, end, peer=0)] for at, end in times]))
    assert ms(evidence.intervals.waiting_ns) == [0, 10, 0]
    assert evidence.waits.for_rank.tolist() == [0]


def test_an_async_op_blocks_from_wait_on() -> None:
    """What is in flight while its rank computes is hidden, and nobody waits."""
    first = FakeOp("all_reduce", 1, 0, 30, waited_ms=5, flags=ASYNC, issued_ms=1)
    second = FakeOp("all_reduce", 1, 20, 30, waited_ms=25, flags=ASYNC, issued_ms=21)
    evidence = Evidence(run([[first], [second]]))
    assert ms(evidence.intervals.waiting_ns) == [15, 0]
    assert ms(evidence.intervals.communicating_ns) == [10, 5]
    [cost] = costs.count(evidence).by_op
    assert (cost.hidden_s, cost.blocked_s) == (pytest.approx(0.004), pytest.approx(0.03))


def test_an_async_op_that_nobody_waits_for_blocks_nobody() -> None:
    """It takes no time of its rank."""
    evidence = Evidence(
        run([[FakeOp("all_reduce", 1, 0, 30, flags=ring_format.ASYNC)], [FakeOp("all_reduce", 1, 20, 30)]])
    )
    assert ms(evidence.intervals.waiting_ns + evidence.intervals.communicating_ns) == [0, 10]


def test_a_receive_waits_for_its_send() -> None:
    """A receive waits until the send begins; a send that ended before the receive began waited for nobody."""
    sends = [FakeOp("send", 1, 20, 22, peer=1), FakeOp("send", 2, 30, 31, peer=1)]
    recvs = [FakeOp("recv", 1, 0, 23, peer=0), FakeOp("recv", 2, 50, 51, peer=0)]
    evidence = Evidence(run([sends, recvs]))
    assert ms(evidence.intervals.waiting_ns) == [0, 0, 20, 0]
    assert evidence.waits.caused_s.tolist() == pytest.approx([0.02, 0])


def test_where_a_rank_never_arrives_all_of_the_time_is_waiting() -> None:
    """Until the end of the run, and for that rank."""
    first = [FakeOp("all_reduce", 1, 0, 10), FakeOp("all_reduce", 2, 20)]
    evidence = Evidence(run([first, [FakeOp("all_reduce", 1, 0, 10), FakeOp("barrier", 1, 90, 100, group="other")]]))
    assert ms(evidence.intervals.waiting_ns)[1] == 80
    assert evidence.waits.matrix(64)[0][0, 1] == pytest.approx(0.08)
    assert evidence.waits.saved_s.tolist() == [0, 0]  # how long it would have taken, nobody knows


def test_several_that_never_arrive_share_the_wait() -> None:
    """So that the sum stays the time that was lost."""
    open_op, done = FakeOp("barrier", 2, 0), FakeOp("barrier", 1, 0, 100)
    waits = Evidence(run([[done, open_op], [done], [done]])).waits
    assert waits.caused_s.tolist() == pytest.approx([0, 0.05, 0.05])


def test_the_setup_of_groups_is_not_counted() -> None:
    """That ranks start one after the other says nothing about the program."""
    evidence = Evidence(run([[FakeOp("init", 1, 0, 90)], [FakeOp("init", 1, 80, 90)]]))
    assert ms(evidence.intervals.waiting_ns) == [80, 0]  # the timeline shows it nevertheless
    assert evidence.waits.caused_s.sum() == evidence.waits.calls == 0
    assert costs.count(evidence).by_op == ()


def test_a_failed_op_ends_with_the_next_of_its_rank() -> None:
    """What failed has no end of its own."""
    failed = FakeOp("all_reduce", 1, 0, flags=ring_format.FAILED)
    evidence = Evidence(run([[failed, FakeOp("barrier", 2, 30, 40)], [FakeOp("barrier", 2, 35, 40)]]))
    assert ms(evidence.intervals.ended_ns - evidence.intervals.blocked_ns)[0] == 30


def test_of_a_run_that_goes_on_open_ops_last_until_now() -> None:
    """As the live page draws them."""
    made = run([[FakeOp("barrier", 1, 0)], [FakeOp("all_reduce", 1, 10, 20, group="other")]])
    now_ns = int(made.table.entered_ns[0]) + 500_000_000
    assert ms(Evidence(made, now_ns).intervals.waiting_ns)[0] == 500


def test_a_wait_between_hosts_is_counted_where_their_clocks_differ_a_little() -> None:
    """The barrier seems to end on one host before the other has come to it."""
    ops = [[FakeOp("barrier", 1, 0, 800)], [FakeOp("barrier", 1, 800.3, 801)]]
    made = replace(run(ops, hosts=["host-1", "host-2"]), is_one_clock=True, clock_error_ns=1_500_000)
    assert ms(Evidence(made).intervals.waiting_ns) == [800, 0]
    assert ms(Evidence(replace(made, clock_error_ns=0)).intervals.waiting_ns) == [0, 0]


def test_without_a_common_clock_nobody_is_blamed() -> None:
    """Where nobody compared the clocks of two hosts, no rank is said to wait, and each begins with its first op."""
    ops = [[FakeOp("all_reduce", 1, 0, 40)], [FakeOp("all_reduce", 1, 3000, 3041)]]
    evidence = Evidence(run(ops, hosts=["host-1", "host-2"]))
    found = evidence.intervals
    assert ms(found.waiting_ns) == [0, 0]
    assert ms(found.blocked_ns - found.shift_ns - found.begin_ns) == [0, 0]
    assert found.run_s == pytest.approx(0.041)
    assert (evidence.waits.caused_s.sum(), evidence.waits.calls) == (0, 0)


def test_a_run_without_ops_has_no_waits() -> None:
    """And nothing breaks."""
    evidence = Evidence(run([[], []]))
    assert evidence.waits.caused_s.tolist() == evidence.waits.saved_s.tolist() == [0, 0]
    assert evidence.waits.share(1.0) == 0
    assert costs.by_line(evidence) == ()
    assert costs.by_size(evidence) == []


def test_costs_are_summed_by_op_line_and_size() -> None:
    """Ops of one line are one line of the table; their speed is that of the time when all ranks were there."""
    evidence = Evidence(run([[FakeOp("all_reduce", n, n * 10, n * 10 + 4) for n in range(5)] for _ in range(2)]))
    [cost] = costs.by_line(evidence)
    assert (cost.name, cost.site, cost.ops, cost.size_bytes) == ("all_reduce", "train.py:7 in step<script>", 10, 40_000)
    assert cost.communicating_s == pytest.approx(0.04)
    [speed] = costs.by_size(evidence)
    assert speed.bytes_per_s == pytest.approx(4000 / 0.004)


def hidden_s(*ranks: list[FakeOp]) -> float:
    [cost] = costs.count(Evidence(run(list(ranks)))).by_op
    return cost.hidden_s


def test_an_op_is_hidden_only_while_it_is_in_flight() -> None:
    """From when all ranks have issued it, until it is waited for or known to be complete."""
    flags = ring_format.ASYNC | ring_format.WAITED
    blocks = [FakeOp("all_reduce", 1, 0, 130, issued_ms=1, waited_ms=100, flags=flags)]
    late = [FakeOp("all_reduce", 1, 60, 130, issued_ms=61, waited_ms=120, flags=flags)]
    assert hidden_s(blocks, late) == pytest.approx((100 - 60 + 120 - 61) / 1000)
    on_device = [FakeOp("all_reduce", 1, 0, 30, issued_ms=1, waited_ms=100, flags=flags)]
    assert hidden_s(on_device) == pytest.approx(0.029)


def test_what_was_complete_when_it_was_waited_for_lasted_as_long_as_others_of_its_size() -> None:
    """An op of a microsecond is not hidden for a second because its handle was kept for that long."""
    flags = ring_format.ASYNC | ring_format.WAITED
    kept = FakeOp("all_reduce", 2, 100, 1100.01, issued_ms=100, waited_ms=1100, flags=flags)
    assert hidden_s([kept]) == 0  # nothing is known of it
    quick = FakeOp("all_reduce", 1, 0, 2)
    assert hidden_s([quick, kept]) == pytest.approx(0.002)


def test_more_than_four_gigabytes_are_counted() -> None:
    """A rank's small ops stay what they were when a larger one follows."""
    sizes = [4000, 6 << 30, 4000]
    ops = [FakeOp("all_reduce", seq, seq * 10, seq * 10 + 5, size_bytes=size) for seq, size in enumerate(sizes, 1)]
    evidence = Evidence(run([ops[:1], ops]))
    assert [evidence.table.get(row).size_bytes for row in range(4)] == [4000, *sizes]
    assert sum(cost.size_bytes for cost in costs.count(evidence).by_op) == 4000 + sum(sizes)

"""Clocks of hosts, compared by pings."""

import time

from rollcall.coordinator.clock_offsets import ClockOffset
from rollcall.explain.loading.load import clocks

S = 1_000_000_000


def test_a_ping_that_was_answered_late_does_not_bend_the_clock() -> None:
    """Between two precise readings a coarse one tells nothing; where nothing better is near, it is kept."""
    precise, late, far = [0, 7_000, 100], [10 * S, S // 2, S], [90_000 * S, 9_000, S // 2]
    alpha = {"slots": 2, "clock_readings": [precise, late, [20 * S, 7_100, 100], far]}
    facts = {"hosts": {"alpha": alpha, "beta": {"slots": 1, "clock_readings": [precise]}}}
    expected = [(0, 7_000, 100), (20 * S, 7_100, 100), (90_000 * S, 9_000, S // 2)]
    assert clocks(facts) == [expected, expected, [(0, 7_000, 100)]]


def test_the_ranks_of_one_host_have_one_clock() -> None:
    """Whatever was read of it: nothing is to be aligned."""
    assert clocks({"hosts": {"alpha": {"slots": 2, "clock_readings": [[0, 7_000, 100]]}}}) == []


def test_a_coarse_clock_is_asked_for_again() -> None:
    """Until an answer comes quickly, or enough were late."""
    clock = ClockOffset()
    clock.note(time.monotonic_ns() - S, time.time_ns(), time.monotonic_ns())
    assert clock.is_coarse
    clock.note(time.monotonic_ns(), time.time_ns(), time.monotonic_ns())
    assert not clock.is_coarse
    late = ClockOffset()
    for _ in range(100):
        late.note(time.monotonic_ns() - S, time.time_ns(), time.monotonic_ns())
    assert not late.is_coarse

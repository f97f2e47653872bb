"""From ops to bytes between hosts."""

import pytest

from rollcall.rehearse.network.traffic import _added_up, _Sum

RANKS = tuple(range(8))


def test_the_rounds_of_a_broadcast_wait_for_each_other() -> None:
    """4 hosts of 2 ranks, from rank 1: the second host sends twice in the last of three rounds."""
    found = _added_up({_Sum("broadcast", RANKS, 1, -1, False, "train.py:3", False): [1, 10.0]}, 2, 8, True)
    (call,) = found.calls
    assert (call.busiest_bytes, call.serial_bytes) == (30.0, 40.0)


def test_only_the_ends_of_a_ring_cross_hosts() -> None:
    found = _added_up({_Sum("all_reduce", RANKS, -1, -1, True, "train.py:3", True): [2, 8.0]}, 4, 8, True)
    assert found.matrix == {(0, 1): pytest.approx(14.0), (1, 0): pytest.approx(14.0)}
    assert found.backends == ("nccl",)


def test_an_all_to_all_counts_what_each_rank_sends_itself() -> None:
    sums = {_Sum("all_to_all", (0, 1, 2, 3), -1, rank, True, "moe.py:3", False): [1, 4.0] for rank in (0, 3)}
    found = _added_up(sums, 2, 4, True)
    assert found.matrix == {(0, 1): 2.0, (1, 0): 2.0}

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


@pytest.mark.parametrize(("hosts", "each", "longer"), [(2, 1, 2.0), (4, 1, 5 / 3), (8, 1, 11 / 7), (4, 2, 4 / 3)])
def test_the_last_rank_of_gloos_all_to_all_gets_half_of_its_parts_after_it_has_sent_all(
    hosts: int, each: int, longer: float
) -> None:
    """On links of 50 Mbit/s, 4 MB each took 2.0, 1.7, 1.7 and 1.3 times as long as the bytes of a host."""
    ranks = tuple(range(hosts * each))
    sums = {_Sum("all_to_all", ranks, -1, rank, False, "moe.py:3", False): [1, 8.0] for rank in ranks}
    (call,) = _added_up(sums, each, len(ranks), True).calls
    assert call.serial_bytes / call.busiest_bytes == pytest.approx(longer)


def test_nccls_all_to_all_uses_both_directions_at_a_time() -> None:
    sums = {_Sum("all_to_all", (0, 1), -1, rank, True, "moe.py:3", False): [1, 8.0] for rank in (0, 1)}
    (call,) = _added_up(sums, 1, 2, True).calls
    assert call.serial_bytes == call.busiest_bytes

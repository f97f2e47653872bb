import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.errors import UsageError
from rollcall.initialization.placement import Placement, locate, place_by_host


def test_locate_on_unequal_hosts() -> None:
    """Ranks fill the hosts one after the other, whatever their sizes."""
    assert [locate(rank, [2, 1, 3]) for rank in range(6)] == [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    with pytest.raises(UsageError, match="rank 6 does not fit"):
        locate(6, [2, 1, 3])


def test_ranks_of_one_host_need_not_be_in_a_row() -> None:
    """A rank's node and local rank follow from the host of each rank, in any order of hosts."""
    assert place_by_host(["b", "a", "b"]) == [Placement(0, 2, 0, 2), Placement(1, 2, 0, 1), Placement(0, 2, 1, 2)]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_sizes_and_names_of_hosts_give_the_same_placements(sizes: list[int]) -> None:
    """Where hosts are filled one after the other, their sizes and their names give the same placements."""
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    for rank, found in enumerate(place_by_host(hosts)):
        assert (found.node_rank, found.local_rank) == locate(rank, sizes)
        assert (found.nnodes, found.local_world_size) == (len(sizes), sizes[found.node_rank])

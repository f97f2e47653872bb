"""Bytes between ranks, by op. Those of gloo were compared with real interfaces: `make bench-rehearse`."""

from collections import defaultdict

import pytest

from rollcall.rehearse.network import algorithms
from rollcall.rehearse.network.algorithms import GLOO, NCCL_RING, Algorithm


def sent(algorithm: Algorithm, size_bytes: float, size: int, root: int = 0) -> dict[tuple[int, int], float]:
    found: dict[tuple[int, int], float] = defaultdict(float)
    for source, target, part in algorithm(size_bytes, size, root):
        assert source != target
        assert {source, target} <= set(range(size))
        found[source, target] += part
    return dict(found)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("table", [GLOO, NCCL_RING])
def test_a_broadcast_reaches_every_rank_once(table: dict[str, Algorithm], size: int) -> None:
    for root in range(size):
        edges = sent(table["broadcast"], 10, size, root)
        assert sorted(target for _, target in edges) == [rank for rank in range(size) if rank != root]
        assert set(edges.values()) == {10}


def test_gloo_broadcasts_by_a_binomial_tree() -> None:
    assert set(sent(GLOO["broadcast"], 1, 8, 1)) == {(1, 2), (1, 3), (2, 4), (1, 5), (2, 6), (3, 7), (4, 0)}


def test_a_ring_of_nccl_goes_up_the_ranks_and_that_of_gloo_down() -> None:
    assert set(sent(NCCL_RING["all_reduce"], 8, 4)) == {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert set(sent(GLOO["all_reduce"], 8, 4)) == {(1, 0), (2, 1), (3, 2), (0, 3)}
    assert set(sent(GLOO["all_reduce"], 8, 4).values()) == {12}


def test_a_reduce_ends_at_its_root() -> None:
    edges = sent(NCCL_RING["reduce"], 10, 4, root=2)
    assert set(edges) == {(3, 0), (0, 1), (1, 2)}


@pytest.mark.parametrize("hosts", [2, 3, 4, 7, 16, 33])
def test_two_trees_send_as_much_as_a_ring_and_no_host_has_more_than_two_children_with_half_each(hosts: int) -> None:
    up: dict[int, float] = defaultdict(float)
    for source, _, part in algorithms.tree(1.0, hosts):
        up[source] += part
    assert sum(up.values()) == pytest.approx(2 * (hosts - 1))
    assert max(up.values()) <= 2.0

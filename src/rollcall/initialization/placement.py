"""Which host a rank runs on, and its number there."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rollcall.errors import UsageError


@dataclass(frozen=True)
class Placement:
    """A rank's host and its number among the ranks of that host."""

    node_rank: int
    nnodes: int
    local_rank: int
    local_world_size: int


def locate(rank: int, ranks_per_host: Sequence[int]) -> tuple[int, int]:
    """The (node_rank, local_rank) of a rank where the hosts are filled one after the other."""
    left = rank
    for node_rank, ranks in enumerate(ranks_per_host):
        if left < ranks:
            return node_rank, left
        left -= ranks
    raise UsageError(f"rank {rank} does not fit on hosts with {list(ranks_per_host)} ranks: add a slot")


def place_by_host(hosts: Sequence[Hashable]) -> list[Placement]:
    """The placement of every rank, from the host of each; hosts are numbered in the order of their first rank."""
    order = list(dict.fromkeys(hosts))
    sizes = dict.fromkeys(order, 0)
    local_ranks = []
    for host in hosts:
        local_ranks.append(sizes[host])
        sizes[host] += 1
    nodes = {host: node_rank for node_rank, host in enumerate(order)}
    return [
        Placement(nodes[host], len(order), local_rank, sizes[host])
        for host, local_rank in zip(hosts, local_ranks, strict=True)
    ]

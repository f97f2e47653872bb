"""The flags of a node that is started by hand: defaults, and which are refused."""

import pytest

from rollcall.errors import UsageError
from rollcall.lab.runner.node import Node


def test_defaults() -> None:
    """One node with four processes at localhost:29500, by env://."""
    node = Node.of({"node_rank": 0}, ranks=None, backend=None)
    assert (node.master_addr, node.master_port, node.init_method) == ("localhost", 29500, "env://")
    assert (node.nnodes, node.nproc_per_node, node.world_size) == (1, 4, 4)


def test_the_world_size_is_shared_among_nodes() -> None:
    """Six ranks on two nodes are three on each; -n means processes per node."""
    assert Node.of({"nnodes": 2, "world_size": 6}, None, None).nproc_per_node == 3
    assert Node.of({"nnodes": 2}, 3, None).world_size == 6


def test_tcp_sets_address_and_port() -> None:
    """tcp://host:port replaces address and port, and changes with the port if that is in use."""
    node = Node.of({"init_method": "tcp://alpha:1234"}, 2, "gloo")
    assert (node.master_addr, node.master_port) == ("alpha", 1234)
    assert node.at(1235).init_method == "tcp://alpha:1235"
    assert Node.of({"init_method": "env://"}, 2, "gloo").at(1235).init_method == "env://"


@pytest.mark.parametrize(
    ("flags", "ranks", "sentence"),
    [
        ({"nproc_per_node": 2}, 3, "differ"),
        ({"nnodes": 0}, 2, "leaves no node"),
        ({"nproc_per_node": 0}, None, "starts nothing"),
        ({"init_method": "tcp://alpha"}, 2, "expected a host and a port"),
        ({"world_size": 5, "nnodes": 2}, None, "is not 2 nodes"),
    ],
)
def test_wrong_flags_are_refused(flags: dict[str, object], ranks: int | None, sentence: str) -> None:
    """Each with one sentence."""
    with pytest.raises(UsageError, match=sentence):
        Node.of(flags, ranks, None)


def test_ranks_are_numbered_through_the_nodes() -> None:
    """The second process of the second node is rank 3 of 4."""
    env = Node.of({"nnodes": 2, "node_rank": 1}, 2, None).env(1)
    assert (env["RANK"], env["LOCAL_RANK"], env["GROUP_RANK"], env["WORLD_SIZE"]) == ("3", "1", "1", "4")

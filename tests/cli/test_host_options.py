"""Hosts as the options of a command name them."""

import pytest

from rollcall.cli.host_options import Hosts, count, forwarded, this_host
from rollcall.errors import UsageError
from rollcall.protocol.hosts import parse


def test_env_names_patterns_and_values() -> None:
    """A name, a pattern, or NAME=VALUE; what is not set, or is each rank's own, is refused."""
    environ = {"NCCL_DEBUG": "INFO", "NCCL_IB": "0", "HOME": "/home/me"}
    assert dict(forwarded(["NCCL_*", "A=b=c"], environ)) == {"NCCL_DEBUG": "INFO", "NCCL_IB": "0", "A": "b=c"}
    with pytest.raises(UsageError, match="--env TOKEN is not set here"):
        forwarded(["TOKEN"], environ)
    with pytest.raises(UsageError, match="--env RANK cannot be passed on"):
        forwarded(["RANK=3"], environ)


def test_nnodes_with_hosts_says_how_few_are_enough() -> None:
    """2:3 goes on with two of three; a number that does not fit the list is refused, and a range needs a list."""
    hosts, here = Hosts(parse("a,b,c", slots=1), "ssh"), this_host(1)
    assert count("2:3", 0, hosts) == (2, 1)
    assert count("3", 0, hosts) == (0, 1)
    assert count("1", 2, hosts) == (2, 1)
    assert count("4", 0, here) == (0, 4)
    for nnodes, least, named in (("2", 0, hosts), ("2:4", 0, here), ("x", 0, hosts), ("1", -1, hosts), ("1", 2, here)):
        with pytest.raises(UsageError):
            count(nnodes, least, named)

"""Host lists as users write them."""

from itertools import chain, combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcall.errors import UsageError
from rollcall.protocol.hosts import Host, parse, read, rounds


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:3,b:3", [Host("a", 3), Host("b", 3)]),
        ("b:1,a:4", [Host("b", 1), Host("a", 4)]),
        ("a,b:2", [Host("a", 8), Host("b", 2)]),
        ("me@a:3", [Host("a", 3, "me")]),
        ("node[01-03]:2", [Host("node01", 2), Host("node02", 2), Host("node03", 2)]),
        ("me@n[1,3]", [Host("n1", 8, "me"), Host("n3", 8, "me")]),
        ("[fe80::1]:4,[::1]", [Host("fe80::1", 4), Host("::1", 8)]),
        ("me@[2001:db8::7%eth0]:2", [Host("2001:db8::7%eth0", 2, "me")]),
        ("10.0.0.1:2, 10.0.0.2:2", [Host("10.0.0.1", 2), Host("10.0.0.2", 2)]),
    ],
)
def test_hosts_are_read_in_order(text: str, hosts: list[Host]) -> None:
    """Names, users, slots, ranges and IPv6 addresses are understood, and the order is kept."""
    assert list(parse(text, slots=8)) == hosts


@pytest.mark.parametrize(
    "text", ["", ",", "a:", "a:0", "a:x", "a:5000", "a:-1", "a:1:2", "@a", "-oProxyCommand=x:2", "x@-a", "a[1", "[::1"]
)
def test_a_bad_host_list_is_refused(text: str) -> None:
    """What is no host, or would be an option to ssh, is an error that shows it."""
    with pytest.raises(UsageError):
        parse(text, slots=1)


def test_a_host_named_twice_is_refused() -> None:
    """The sentence says how to write it once."""
    with pytest.raises(UsageError, match=r"names a twice: name it once, with all its slots \(a:5\)"):
        parse("a:2,b:1,a:3", slots=1)


@given(st.lists(st.tuples(st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True), st.integers(1, 64)), min_size=1))
def test_what_is_written_is_read(pairs: list[tuple[str, int]]) -> None:
    """Any list of names and slots comes back as it was."""
    hosts = dict(pairs)
    text = ",".join(f"{name}:{slots}" for name, slots in hosts.items())
    assert [(host.name, host.slots) for host in parse(text, slots=1)] == list(hosts.items())


def test_a_hostfile_of_open_mpi_or_deepspeed_is_read(tmp_path: Path) -> None:
    """`slots=` in both dialects, comments and empty lines."""
    path = tmp_path / "hosts"
    path.write_text(
        "# ours\nalpha slots=4 max-slots=8\n\nme@beta slots=2   # the small one\ngamma:3\ndelta\nn[1-2] slots=1\n"
    )
    assert list(read(path, slots=6)) == [
        Host("alpha", 4),
        Host("beta", 2, "me"),
        Host("gamma", 3),
        Host("delta", 6),
        Host("n1", 1),
        Host("n2", 1),
    ]


def test_a_bad_line_of_a_hostfile_is_named(tmp_path: Path) -> None:
    """By its number, with what was expected."""
    path = tmp_path / "hosts"
    path.write_text("alpha slots=4\nbeta cores=3\n")
    with pytest.raises(UsageError, match=r"line 2 has 'cores=3': expected `HOST slots=N`"):
        read(path, slots=1)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"# nobody\n"])
def test_a_hostfile_without_hosts_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """Missing, not text, or empty: one sentence with its path."""
    path = tmp_path / "hosts"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=str(path)):
        read(path, slots=1)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_each_pair_of_hosts_meets_once(count: int) -> None:
    """In rounds, in each of which a host is in one pair at most."""
    met = list(rounds(range(count)))
    assert sorted(map(sorted, chain(*met))) == [list(pair) for pair in combinations(range(count), 2)]
    assert all(len(set(chain(*pairs))) == 2 * len(pairs) for pairs in met)

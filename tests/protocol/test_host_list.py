import pytest

from rollcall.errors import UsageError
from rollcall.protocol.host_list import expand, expand_counts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("node[01-03,7],x", ["node01", "node02", "node03", "node7", "x"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a[1-2]-ib,b", ["a1-ib", "a2-ib", "b"]),
        ("node3,node1", ["node3", "node1"]),
    ],
)
def test_a_list_names_its_hosts_in_order(text: str, hosts: list[str]) -> None:
    """A host list expands to its hosts in the order of the list."""
    assert list(expand(text)) == hosts


@pytest.mark.parametrize("text", ["", ",", "a[1-2", "a1]", "a[]", "a[x]", "a[3-1]", "a[[1]]", "a[1-999999999]"])
def test_a_broken_list_is_refused(text: str) -> None:
    """A list that cannot be read is an error that shows the list."""
    with pytest.raises(UsageError, match="host list"):
        expand(text)


def test_counts_repeat() -> None:
    """SLURM's short form of counts per host expands."""
    assert expand_counts("2(x3),1") == (2, 2, 2, 1)
    assert expand_counts("4") == (4,)


@pytest.mark.parametrize("text", ["", "x", "2(3)", "2(x)", "1,,2"])
def test_broken_counts_are_refused(text: str) -> None:
    """Counts that cannot be read are an error."""
    with pytest.raises(UsageError, match="tasks per host"):
        expand_counts(text)

"""Which ranks a prompt asks `rollcall run` for."""

import pytest

from rollcall.errors import UsageError
from rollcall.shell.options import Wanted

ALWAYS = "--start warm --hang-after 10.0"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(), f"{ALWAYS} -n 2"),
        (Wanted(ranks=3, virtual_hosts=2), f"{ALWAYS} -n 3 --virtual-hosts 2"),
        (Wanted(hosts="a:3,b:3"), f"{ALWAYS} --hosts a:3,b:3"),
        (Wanted(ranks=2, hostfile="h.txt", python="/p"), f"{ALWAYS} -n 2 --hostfile h.txt --python /p"),
        (Wanted(preload=("m",)), f"{ALWAYS} -n 2 --preload m"),
    ],
)
def test_words(wanted: Wanted, words: str) -> None:
    """Two ranks, unless somebody says how many: the hosts may."""
    wanted.check()
    assert wanted.words() == words.split()


@pytest.mark.parametrize("wanted", [Wanted(ranks=0), Wanted(ranks=33, virtual_hosts=2), Wanted(hang_after_s=0)])
def test_what_cannot_work(wanted: Wanted) -> None:
    with pytest.raises(UsageError):
        wanted.check()

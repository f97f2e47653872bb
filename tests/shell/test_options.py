"""Which ranks a prompt asks `rollcall run` for."""

import pytest

from rollcall.errors import UsageError
from rollcall.shell.options import ShellOptions

ALWAYS = "--start warm --hang-after 10.0"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ShellOptions(), f"{ALWAYS} -n 2"),
        (ShellOptions(ranks=3, virtual_hosts=2), f"{ALWAYS} -n 3 --virtual-hosts 2"),
        (ShellOptions(hosts="a:3,b:3"), f"{ALWAYS} --hosts a:3,b:3"),
        (ShellOptions(ranks=2, hostfile="h.txt", python="/p"), f"{ALWAYS} -n 2 --hostfile h.txt --python /p"),
        (ShellOptions(preload=("m",)), f"{ALWAYS} -n 2 --preload m"),
    ],
)
def test_arguments(options: ShellOptions, expected: str) -> None:
    """Two ranks, unless somebody says how many: the hosts may."""
    options.check()
    assert options.arguments() == expected.split()


@pytest.mark.parametrize(
    "wanted", [ShellOptions(ranks=0), ShellOptions(ranks=33, virtual_hosts=2), ShellOptions(hang_after_s=0)]
)
def test_what_cannot_work(wanted: ShellOptions) -> None:
    with pytest.raises(UsageError):
        wanted.check()

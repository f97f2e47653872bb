"""Ranks that share a core: gloo's listener yields to the thread that it waits for."""

import pytest

from rollcall import native
from rollcall.compat import gloo_listener
from tests.rollcall_command import Runner
from tests.said import said

is_built = pytest.mark.skipif(
    not gloo_listener.install(), reason="needs `python -m rollcall.native`, which compiles it"
)

# On one core the thread that holds a connection's lock is never running while the listener does. How often the two meet
# is up to the scheduler, and to what else runs there: the ranks go on until they have, or were told to stop.
REDUCES = """\
import os, sys, torch, torch.distributed as dist
from rollcall import native
from rollcall.compat import gloo_listener
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
dist.init_process_group("gloo")
total, yielded = torch.ones(1000), torch.zeros(1)
for turn in range(int(sys.argv[1])):
    for _ in range(500):
        dist.all_reduce(total)
        total /= dist.get_world_size()
    yielded.fill_(gloo_listener.count() > 0)
    dist.all_reduce(yielded, dist.ReduceOp.MIN)
    if yielded.item():
        break
print("sum", total.sum().item())
print("yielded", gloo_listener.count() > 0)
"""


@is_built
def test_the_listener_yields(rollcall: Runner) -> None:
    """In ranks whose program knows nothing of it; and what they compute is the same."""
    rollcall.script(REDUCES)
    ran = rollcall("run", "-n", 2, "--no-record", "script.py", 20)
    assert said(ran.out) == {"sum 1000.0": [0, 1], "yielded True": [0, 1]}


@is_built
def test_it_yields_under_other_launchers(rollcall: Runner) -> None:
    """`rollcall.init` installs it, whatever launcher started the rank."""
    rollcall.script(REDUCES.replace('dist.init_process_group("gloo")', "import rollcall; world = rollcall.init()"))
    ran = rollcall("run", "-n", 2, "--no-record", "--start", "fresh", "script.py", 20)
    assert said(ran.out) == {"sum 1000.0": [0, 1], "yielded True": [0, 1]}


def test_it_can_be_left_out(rollcall: Runner) -> None:
    """With ROLLCALL_NATIVE=0 gloo does as it always did."""
    rollcall.env["ROLLCALL_NATIVE"] = "0"
    rollcall.script(REDUCES)
    ran = rollcall("run", "-n", 2, "--no-record", "script.py", 1)
    assert said(ran.out) == {"sum 1000.0": [0, 1], "yielded False": [0, 1]}


def test_it_has_a_switch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLCALL_COMPAT", "-gloo_listener")
    assert not gloo_listener.install.__wrapped__()


@is_built
@pytest.mark.parametrize("library", ["/no-such-library.so", "/libc10.so"])
def test_a_library_that_is_not_as_it_knows_it_is_left_alone(library: str) -> None:
    """It is not loaded, or does not call epoll_wait."""
    assert not native.load(gloo_listener._SOURCE).install(library)

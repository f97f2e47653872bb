"""Fixtures of all tests."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollcall import find_free_port
from rollcall.cli.app import command
from tests.cluster.fixtures import cluster, hosts, slurm  # noqa: F401
from tests.report.fixtures import browser, open_page, restarted, run  # noqa: F401
from tests.rollcall_command import Result, Runner
from tests.warm import WarmRunner

# Threads of torch that wait for each other spin, and take the cores from all other tests. Nothing here has imported
# torch yet, which reads this once.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Who runs us in the background has these ignored for all that we start, and Ctrl-C is something that tests try.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# They take longest, and run first: if one of them began last, all other workers would wait for it.
LONGEST = (
    "tests/worker/test_fidelity.py",
    "tests/demo/",
    "tests/packaging/",
    "tests/schedulers/test_lost_pods.py",
    "tests/train/test_slurm.py",
    "tests/train/test_interruptions.py",
    "tests/transport/test_warm.py",
    "tests/testing/",
    "tests/test_examples.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.fixture
def rollcall(tmp_path: Path) -> Iterator[Runner]:
    yield from _leaving_nothing(Runner(tmp_path))


@pytest.fixture
def warm_rollcall(tmp_path: Path) -> Iterator[Runner]:
    """For tests that are not about how ranks start, and that leave variables and --preload alone."""
    yield from _leaving_nothing(WarmRunner(tmp_path))


def _leaving_nothing(runner: Runner) -> Iterator[Runner]:
    yield runner
    left = runner.wait_until_gone()
    for process in left:
        process.kill()
    assert not left, f"left running: {left}"


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """`rollcall` in this process, for command lines that it refuses: a process for each costs a second of a core."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLCALL_DIR", str(tmp_path / ".rollcall"))

    def refuse(*words: object) -> Result:
        monkeypatch.setattr("sys.argv", ["rollcall", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            command()
        return Result(int(str(ended.value.code)), *capsys.readouterr())

    return refuse


@pytest.fixture
def free_port() -> int:
    """For what can only be told a number: free now, and not handed out again soon."""
    return find_free_port()

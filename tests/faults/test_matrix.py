"""The fault matrix: what goes wrong, in three places. Each cell ends or goes on by itself, names the right host
and cause, has the right exit code, and leaves no process on any host. docs/faults.md shows it as a table.

`only` leaves out places where the same code decides in the same way, or where there is nothing to go wrong. What is
killed or interrupted on one host is in tests/coordinator.
"""

import contextlib
import importlib.util
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.rollcall_command import until

from .places import Place

CHATTY = """\
import os, sys, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(300):
    os.write(1, b"x" * 9_999 + b"\\n")
dist.barrier()
"""


def only(*places: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("place", places, indirect=True)


def kill(process: psutil.Process, number: int = signal.SIGKILL) -> None:
    process.send_signal(number)


@only("ssh", "slurm")
def test_a_rank_is_killed(place: Place) -> None:
    """The rank is named with its host and its signal, and the run's exit code is that signal's."""
    run = place.start()
    kill(run.rank(3))
    assert run.result() == 128 + signal.SIGKILL
    assert f"rank 3 on {place.last_host} was killed by SIGKILL" in run.err
    assert place.left() == []


@only("ssh")
def test_a_rank_is_stopped(place: Place) -> None:
    """A rank that somebody stopped is named as such, and does not keep everyone waiting for ever."""
    run = place.start()
    kill(run.rank(3), signal.SIGSTOP)
    assert run.result() == 128 + signal.SIGKILL
    assert f"rank 3 on {place.last_host} was stopped (SIGSTOP)" in run.err
    assert place.left() == []


@only("ssh", "slurm")
def test_an_agent_is_killed(place: Place) -> None:
    """The host whose agent was killed is named, with the signal."""
    run = place.start()
    kill(run.agent_of(3))
    assert run.result() == 1
    assert f"{place.last_host} lost its agent, which was killed by SIGKILL" in run.err
    assert place.left() == []


@only("ssh", "slurm")
def test_the_launcher_is_killed(place: Place) -> None:
    """Nobody is left to say anything; but nothing stays on any host."""
    run = place.start()
    kill(run.launcher())
    run.result()  # salloc reports 0 for a command that was killed
    assert place.left() == []


@only("ssh", "slurm")
def test_the_launcher_is_interrupted(place: Place) -> None:
    """Ctrl-C ends the ranks on all hosts, and the exit code is 130."""
    run = place.start()
    kill(run.launcher(), signal.SIGINT)
    assert run.result() == 128 + signal.SIGINT
    assert "interrupted" in run.err
    assert place.left() == []


def test_the_network_of_a_host_is_cut(place: Place) -> None:
    """The host is named as lost, on either side of the cut nothing stays; one host alone needs no network."""
    run = place.start()
    place.hosts[-1].cut()
    if place.name == "local":
        time.sleep(1)
        run.finish()
        assert run.result() == 0, run.err
        return
    assert run.result() == 1
    assert f"{place.last_host} was not heard of for 10 s" in run.err
    assert place.left() == []


@only("ssh", "slurm")
def test_the_network_is_cut_and_heals(place: Place) -> None:
    """A cut of less than five seconds is survived."""
    run = place.start()
    place.hosts[-1].cut()
    time.sleep(4.5)
    place.hosts[-1].heal()
    run.finish()
    assert run.result() == 0, run.err
    assert sorted(line.split()[-1] for line in run.out.splitlines() if "done" in line) == ["0", "1", "2", "3"]


@only("ssh")
def test_the_master_host_dies(place: Place) -> None:
    """With the first host gone the others end, and it is named."""
    run = place.start()
    master = place.hosts[0]
    master.cut()
    for process in master.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with one before it
            kill(process)
    assert run.result() == 1
    assert "h1 was not heard of for 10 s" in run.err
    assert place.left() == []


@only("ssh")
def test_a_host_refuses_ssh(place: Place) -> None:
    """The host is named, with what to do."""
    place.hosts[-1].stop_sshd()
    run = place.start(begun=False)
    assert run.result() == 1
    assert "h2: " in run.err
    assert "Connection refused — no sshd listens there" in run.err
    assert place.left() == []


@only("ssh", "slurm")
def test_a_host_has_another_torch(place: Place) -> None:
    """Versions that differ between hosts are an error that names both, and the hosts."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    version_file = Path(spec.submodule_search_locations[0], "version.py")
    text = version_file.read_text()
    place.hosts[-1].overlay(version_file, text.replace("__version__ = '2.13.0", "__version__ = '2.12.0"))
    run = place.start(begun=False)
    assert run.result() == 2
    assert "torch is 2.13.0+cpu on h1, 2.12.0+cpu on h2" in run.err
    assert "--allow-mixed" in run.err
    assert place.left() == []


@only("ssh", "slurm")
def test_a_host_is_lost_and_there_is_a_spare(place: Place) -> None:
    """The spare takes its place: as many ranks, in the same order, and no restart is used."""
    run = place.with_spare().start()
    kill(run.agent_of(3))
    assert until(lambda: run.has_begun(place.ranks, attempt=1)), run.process.communicate()
    run.finish()
    assert run.result() == 0, run.err
    assert "h3 takes the place of h2" in run.err
    assert run.facts["attempts"][1]["hosts"] == {"h1": [0, 1], "h3": [2, 3]}
    assert place.left() == []


@only("local", "ssh")
def test_the_disk_of_the_logs_is_full(place: Place) -> None:
    """The ranks continue, and it is said once per log which one is no longer written, and why."""
    run = place.start("--log-dir", place.cluster.small_disk, begun=False, program=CHATTY)
    assert run.result() == 0, run.err
    assert "is no longer written (No space left on device)" in run.err
    assert run.out.count("xxx") > 0
    assert place.left() == []


def test_the_matrix_is_in_the_docs() -> None:
    """Each row of the first table in docs/faults.md is one of the tests above, and the other way round. Those of the
    second one name their tests."""
    here = Path(__file__).parents[1]
    first, second = (here.parent / "docs" / "faults.md").read_text().split("## Other faults")
    rows = [line.split("|")[1].strip() for line in first.splitlines() if line.startswith("| ")][2:]
    others = set(re.findall(r"`(test_\w+)`", second))
    assert len(others) == sum(line.startswith("| ") for line in second.splitlines()) - 2
    assert others <= {
        name for path in here.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    tests = [name for name in globals() if name.startswith("test_") and name != "test_the_matrix_is_in_the_docs"]
    assert [row.lower().replace(" ", "_") for row in rows] == [name.removeprefix("test_") for name in tests]

"""However a run ends, nothing of it is left."""

import os
import signal
import subprocess
from collections.abc import Callable

import psutil
import pytest

from tests.rollcall_command import PROGRAMS, Runner, until
from tests.said import said

RANKS = 2


def started(rollcall: Runner, *options: str) -> "subprocess.Popen[str]":
    """A run whose ranks have workers, children that left the session, and daemons."""
    process = rollcall.start("run", "-n", RANKS, *options, PROGRAMS / "with_family.py", rollcall.folder)
    assert until(lambda: all((rollcall.folder / f"ready.{r}").exists() for r in range(RANKS))), process.stderr
    return process


def agent_of(launcher: int) -> int:
    (agent,) = (
        p for p in psutil.Process(launcher).children() if any("rollcall.agent.main" in word for word in p.cmdline())
    )
    return agent.pid


def server_of(launcher: int) -> int:
    """The agent's child that is the parent of the ranks."""
    (server,) = (p for p in psutil.Process(agent_of(launcher)).children() if len(p.children()) >= RANKS)
    return server.pid


@pytest.mark.parametrize(
    ("victim", "code", "sentence"),
    [
        (lambda launcher: launcher, -signal.SIGKILL, ""),
        (agent_of, 128 + signal.SIGKILL, "this host lost its agent, which was killed by SIGKILL"),
        (server_of, 1, "the fork server was killed"),
    ],
    ids=["launcher", "agent", "server"],
)
def test_nothing_is_left_after_kill_9(rollcall: Runner, victim: Callable[[int], int], code: int, sentence: str) -> None:
    """Ranks, DataLoader workers and daemons end when launcher, agent or fork server is killed with SIGKILL; the run
    says in words which it was."""
    process = started(rollcall)
    assert until(lambda: len(rollcall.processes()) >= 3 + RANKS * 4), rollcall.processes()
    os.kill(victim(process.pid), signal.SIGKILL)
    left = rollcall.wait_until_gone()
    assert not left
    _, err = process.communicate(timeout=180)
    assert process.returncode == code
    assert sentence in err


PATIENT = """
import os, signal, sys, time
from pathlib import Path
def note(number, frame):
    print("heard", signal.Signals(number).name)
    if {leave}:
        time.sleep(0.5)
        print("has saved")
        sys.exit(3)
signal.signal(signal.SIGINT, note)
signal.signal(signal.SIGTERM, note)
Path("ready." + os.environ["RANK"]).touch()
while True:
    time.sleep(0.1)
"""


def patient(rollcall: Runner, leave: bool, *options: str) -> "subprocess.Popen[str]":
    rollcall.script(PATIENT.format(leave=leave))
    process = rollcall.start("run", "-n", RANKS, *options, "script.py")
    assert until(lambda: all((rollcall.folder / f"ready.{r}").exists() for r in range(RANKS)))
    return process


def test_ctrl_c_lets_the_ranks_end_by_themselves(rollcall: Runner) -> None:
    """One SIGINT reaches every rank once; within the grace they end as they like."""
    process = patient(rollcall, True)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert said(out)["heard SIGINT"] == [0, 1]
    assert "heard SIGTERM" not in out
    assert "interrupted: the ranks have 10 s to end" in err
    assert process.returncode == 128 + signal.SIGINT


def test_after_the_grace_come_sigterm_and_sigkill(rollcall: Runner) -> None:
    """Ranks that do not heed SIGINT get SIGTERM after the grace, and SIGKILL after that."""
    process = patient(rollcall, False, "--grace", "0.5")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=180)
    assert said(out)["heard SIGINT"] == [0, 1]
    assert said(out)["heard SIGTERM"] == [0, 1]
    assert process.returncode == 128 + signal.SIGINT


def test_a_second_ctrl_c_ends_the_run_now(rollcall: Runner) -> None:
    """With a grace of a minute, the second SIGINT kills at once. Ranks that it killed before the agent had looked at
    the first have not failed: no other attempt begins."""
    process = patient(rollcall, False, "--grace", "60", "--max-restarts", "3")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "interrupted" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=180)
    assert (err, process.returncode) == ("", 128 + signal.SIGINT)


def test_ctrl_c_before_the_ranks_are_there(rollcall: Runner) -> None:
    """While the agent still imports torch, SIGINT ends the run as well."""
    rollcall.script("import time; time.sleep(60)")
    process = rollcall.start("run", "-n", 2, "script.py")
    assert until(lambda: psutil.Process(process.pid).children())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 128 + signal.SIGINT


def test_sigterm_is_passed_on(rollcall: Runner) -> None:
    """SIGTERM to the launcher becomes SIGTERM to the ranks: a scheduler's warning reaches the program. A second one
    does not shorten the grace: timeout(1), for one, sends it to the process and to its group."""
    process = patient(rollcall, True)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    heard = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out = heard + process.communicate(timeout=180)[0]
    assert said(out)["heard SIGTERM"] == said(out)["has saved"] == [0, 1]
    assert process.returncode == 128 + signal.SIGTERM


def test_a_run_over_its_time_ends_with_124(rollcall: Runner) -> None:
    """--timeout ends the ranks and says so."""
    rollcall.script("import time; time.sleep(60)")
    result = rollcall("run", "-n", 2, "--timeout", "2", "script.py")
    assert result.code == 124
    assert "longer than --timeout 2 s" in result.err


def test_what_ranks_leave_running_is_ended_and_named(rollcall: Runner) -> None:
    """A daemon that a rank left behind does not outlive a run that ended well."""
    rollcall.script("import subprocess; subprocess.Popen(['setsid', 'sleep', '300'])")
    result = rollcall("run", "-n", 2, "script.py")
    assert result.code == 0
    assert "ended what the ranks had left running: sleep 300" in result.err


def test_a_reader_that_has_seen_enough_ends_the_run(rollcall: Runner) -> None:
    """`rollcall run … | head` ends its ranks, with 128 + SIGPIPE and without a word."""
    rollcall.script("while True: print('more')")
    with rollcall.start("run", "-n", 2, "script.py") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith("│ more\n")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE


def test_ctrl_c_on_one_host_ends_the_other(rollcall: Runner, free_port: int) -> None:
    """Of two hosts started by hand, the second learns that the run was stopped on the first."""
    rollcall.script("import os, time; open('ready.' + os.environ['RANK'], 'w').close(); time.sleep(60)")
    common = ["run", "--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", free_port]
    first, second = (rollcall.start(*common, "--node-rank", node, "script.py") for node in (0, 1))
    assert until(lambda: all((rollcall.folder / f"ready.{r}").exists() for r in range(2)))
    first.send_signal(signal.SIGINT)
    (_, err0), (_, err1) = first.communicate(timeout=180), second.communicate(timeout=180)
    assert first.returncode == 128 + signal.SIGINT, err0
    assert second.returncode == 1
    assert "the run was stopped on" in err1

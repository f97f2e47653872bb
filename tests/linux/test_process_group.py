"""Whom a signal to a rank reaches."""

import os
import select
import signal
import subprocess
import sys

from rollcall.linux import process_group

STARTS_ONE = """\
import os, subprocess, sys
if {own_group}:
    os.setsid()
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
child.wait()
"""


def start(own_group: bool) -> tuple["subprocess.Popen[str]", int]:
    """A process and a child of it."""
    command = [sys.executable, "-c", STARTS_ONE.format(own_group=own_group)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as pids:
        return process, os.pidfd_open(int(pids.readline()))


def test_what_a_rank_has_started_gets_it_too() -> None:
    process, child = start(own_group=True)
    process_group.send(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert has_ended(child)


def test_a_rank_without_a_group_of_its_own_yet_gets_it_alone() -> None:
    process, child = start(own_group=False)
    process_group.send(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    signal.pidfd_send_signal(child, signal.SIGKILL)  # it still runs, or this would raise
    assert has_ended(child)


def test_a_rank_that_is_gone_gets_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    process_group.send(process.pid, signal.SIGKILL)


def has_ended(pidfd: int) -> bool:
    """Within some seconds."""
    try:
        return bool(select.select([pidfd], [], [], 30)[0])
    finally:
        os.close(pidfd)

"""Ranks that sit somewhere, and ranks that work."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from rollcall.agent.monitoring import idle_ranks

SPINS = "while True: pass"
READS = "import time\nwhile True: open('/dev/zero', 'rb', 0).read(100_000); time.sleep(0.05)"
PROGRAMS = {
    "sleeps": "import time; time.sleep(60)",
    "locks": "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "polls": "import os, time\nwhile not os.path.exists('/no/such/file'): time.sleep(0.1)",
    "computes": SPINS,
    "reads": READS,
    "has a worker": f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPINS!r}])",
}


@pytest.fixture(scope="module")
def pids() -> Iterator[dict[int, int]]:
    """A process of each sort, by its place."""
    begun = "print(flush=True); import sys; sys.stdout.close()\n"
    started = [
        subprocess.Popen([sys.executable, "-c", begun + text], stdout=subprocess.PIPE, start_new_session=True)
        for text in PROGRAMS.values()
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
    yield {number: process.pid for number, process in enumerate(started)}
    for process in started:
        subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], check=False)  # and the worker's group
        process.wait()


def test_who_sits_somewhere_is_idle(pids: dict[int, int]) -> None:
    """In a sleep, a lock or waiting for a file; not if it, or a process of its own, computes or reads."""
    idle_ranks.find(pids, 0.3)  # until all have done what they do at their start
    found = idle_ranks.find(pids, 1.0)
    assert {name for number, name in enumerate(PROGRAMS) if found[str(number)]} == {"sleeps", "locks", "polls"}


def test_a_process_that_is_gone_uses_nothing() -> None:
    """It may end while it is looked at."""
    assert idle_ranks.find({0: 2**22 + 1}, 0.01) == {"0": True}

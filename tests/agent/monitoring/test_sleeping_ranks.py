"""Ranks that wait for locks and cannot go on, and ranks that may."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollcall.agent.monitoring.hang_detector import HangDetector
from rollcall.agent.monitoring.sleeping_ranks import SleepingRanks
from rollcall.protocol.messages import Standstill

LOCK = "import threading; lock = threading.Lock(); lock.acquire(); "
LOCKED = {
    "locks": LOCK + "lock.acquire()",
    "joins a thread that locks": LOCK + "t = threading.Thread(target=lock.acquire); t.start(); t.join()",
    "waits for an empty queue": "import queue; queue.Queue().get()",
    "locks a file": "import fcntl, sys; a, b = open(sys.argv[1], 'w'), open(sys.argv[1], 'w')\n"
    "fcntl.flock(a, fcntl.LOCK_EX); fcntl.flock(b, fcntl.LOCK_EX)",
}
FREE = {
    "sleeps": "import time; time.sleep(600)",
    "polls": "import time\nwhile True: time.sleep(0.05)",
    "polls a lock": LOCK + "\nwhile not lock.acquire(timeout=0.05): pass",
    "computes": "while True: pass",
    "listens": "import socket; s = socket.create_server(('127.0.0.1', 0)); s.accept()",
    "has a thread that listens": "import socket, threading; s = socket.create_server(('127.0.0.1', 0))\n"
    "t = threading.Thread(target=s.accept); t.start(); t.join()",
    "has a thread that sleeps": LOCK + "import time; threading.Thread(target=time.sleep, args=(600,)).start()\n"
    "lock.acquire()",
    "has a process of its own": "import subprocess, threading\np = subprocess.Popen(['sleep', '600'])\n"
    "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "waits for its child": "import subprocess; subprocess.run(['sleep', '600'])",
    "reads its input": "import sys; sys.stdin.read()",
}


@pytest.fixture(scope="module")
def pids(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """A process of each sort, by its name."""
    begun = "print(flush=True); import sys; sys.stdout.close()\n"
    path = tmp_path_factory.mktemp("locks") / "lock"
    started = {
        name: subprocess.Popen(
            [sys.executable, "-c", begun + text, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for name, text in (LOCKED | FREE).items()
    }
    for process in started.values():
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
    yield {name: process.pid for name, process in started.items()}
    for process in started.values():
        subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], check=False)  # and its own processes
        process.communicate()


def test_only_ranks_whose_threads_all_wait_for_locks_sleep_for_good(pids: dict[str, int]) -> None:
    """Until all have come to where they stay, on a machine that may be busy, some may still run."""
    ranks = {name: SleepingRanks() for name in pids}
    deadline = time.monotonic() + 60
    asleep: set[str] = set()
    while asleep != set(LOCKED) and time.monotonic() < deadline:
        time.sleep(0.2)
        slept_s = {name: each.slept_s([pids[name]]) for name, each in ranks.items()}
        asleep = {name for name, seconds in slept_s.items() if seconds > 1}
    assert asleep == set(LOCKED)


def test_one_rank_that_may_go_on_is_enough(pids: dict[str, int]) -> None:
    both = SleepingRanks()
    for _ in range(5):
        time.sleep(0.1)
        assert both.slept_s([pids["locks"], pids["sleeps"]]) < 0.05
    assert both.slept_s([]) == 0


def test_a_rank_that_is_asked_for_its_stack_sleeps_on(monkeypatch: pytest.MonkeyPatch, pids: dict[str, int]) -> None:
    """The signal wakes its main thread. What else wakes it, counts."""
    runs = [1, 1, 2, 3, 3, 4]
    monkeypatch.setattr("rollcall.agent.monitoring.sleeping_ranks.switches", lambda *_: runs.pop(0))
    ranks, pid = SleepingRanks(), pids["locks"]
    ranks.slept_s([pid])
    time.sleep(0.05)
    assert ranks.slept_s([pid]) >= 0.05
    with ranks.are_asked():
        assert ranks.slept_s([pid]) >= 0.05
    assert ranks.slept_s([pid]) >= 0.05  # the answer may have come between the two looks
    assert ranks.slept_s([pid]) >= 0.05
    assert ranks.slept_s([pid]) == 0


def test_a_host_whose_ranks_all_sleep_for_good_stands_still(tmp_path: Path, pids: dict[str, int]) -> None:
    """Though none of them is in an op; not before the limit."""
    detector = HangDetector(tmp_path, after_s=0.5, every_s=0)
    deadline = time.monotonic() + 60
    found: list[Standstill] = []
    while not (found and found[-1].is_hang) and time.monotonic() < deadline:
        time.sleep(0.05)
        found += [state for state in [detector.check(0, [pids["locks"]])] if state]
    assert found[-1] == Standstill(is_still=True, is_waiting=False, is_asleep=True)


def test_all_hosts_must_sleep() -> None:
    asleep, still, waits = Standstill(True, False, True), Standstill(True, False), Standstill(True, True)
    assert Standstill.of_all([asleep, asleep]).is_hang
    assert not Standstill.of_all([asleep, still]).is_hang
    assert Standstill.of_all([asleep, waits]) == waits

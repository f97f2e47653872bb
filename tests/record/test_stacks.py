"""Ranks are asked for their stacks by a signal, which must not end those that do not listen for it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollcall.linux import py_spy
from rollcall.record.on_request.stacks import ASK, is_listening
from rollcall.record.ring import Ring
from tests.rollcall_command import Runner

# As Lightning does it around `fit`: a handler that Python did not set comes back as the default.
RESET = """\
import os, signal, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
signal.signal(signal.SIGRTMIN + 6, signal.SIG_DFL)
if dist.get_rank() == 0:
    time.sleep(4)
dist.barrier()
print("done", dist.get_rank())
"""


def test_a_rank_whose_handler_was_reset_lives_on(warm_rollcall: Runner) -> None:
    """A wait longer than --hang-after is looked into, and the run ends as it would without."""
    warm_rollcall.script(RESET)
    ran = warm_rollcall("run", "-n", 2, "--hang-after", 1, "script.py")
    assert (ran.code, ran.out.count("done ")) == (0, 2), ran.err


HANGS = """\
import re, signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_DFL)

def receive():
    dist.recv(torch.ones(1), src=1)

def match():
    re.match("(a+)+$", "a" * 64 + "b")  # takes years, and holds Python's lock

receive() if dist.get_rank() == 0 else match()
"""


LOCKED = """\
import threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
lock = threading.Lock()

def enter():
    with lock:
        print("in", flush=True)
        leave()

def leave():
    with lock:
        print("never")

time.sleep(3)  # longer than --hang-after: it goes on by itself
enter()
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_all_wait_for_locks_are_ended(ranks: int, rollcall: Runner) -> None:
    """No rank is in an op, so no other one waits for them. A sleep before is no hang."""
    rollcall.script(LOCKED)
    ran = rollcall("run", "-n", ranks, "--hang-after", 1, "--on-hang", "stop", "--grace", 0.1, "script.py")
    assert ran.code == 124, ran.err
    assert f"verdict: busy-rank — look at {'rank 0' if ranks == 1 else 'ranks 0-1'}" in ran.err
    assert "script.py:12 in leave ← script.py:9 in enter" in ran.err
    told = rollcall("explain", "--json")
    assert json.loads(told.out)["outcome"] == "hung"


def test_a_rank_that_resets_all_handlers_shows_its_stack(warm_rollcall: Runner) -> None:
    """A thread of its own writes it. Where that cannot run, py-spy reads it, or the reason is said."""
    warm_rollcall.script(HANGS)
    ran = warm_rollcall("run", "-n", 2, "--hang-after", 1, "--on-hang", "stop", "--grace", 0.1, "script.py")
    assert ran.code == 124, ran.err
    assert "rank 0: script.py:8 in receive ← script.py:13 in <module>" in ran.err
    is_readable = py_spy.command() is not None
    assert ("rank 1: script.py:11 in match" in ran.err) == is_readable, ran.err
    assert ("rank 1: not known: the program has reset the signal handler" in ran.err) != is_readable, ran.err


PY_SPY = """\
[{"pid": 7, "thread_name": "side", "os_thread_id": 8, "frames": [{"name": "f", "filename": "/a.py", "line": 1}]},
 {"pid": 7, "thread_name": "renamed", "os_thread_id": 7, "frames": [{"name": "g", "filename": "/b.py", "line": 2}]}]
"""


def test_py_spy_tells_the_main_thread() -> None:
    """Whatever its name is: it has the number of the process."""
    assert py_spy.parse(json.loads(PY_SPY)) == [("/b.py", 2, "g")]
    assert py_spy.parse([]) == []


@pytest.mark.parametrize(("handler", "expected"), [("lambda *_: None", True), ("signal.SIG_DFL", False)])
def test_whether_a_process_listens_is_seen_from_outside(tmp_path: Path, handler: str, expected: bool) -> None:
    """By what the kernel says of its handlers."""
    ring = tmp_path / "rank-0.ring"
    Ring(ring, rank=0, world_size=1, attempt=0, host="here")
    code = f"import signal\nsignal.signal({int(ASK)}, {handler})\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_listening(process.pid, ring) is expected
        process.communicate(b"\n")
    assert not is_listening(process.pid, ring)


# Ends in a crash; what the program has decided comes first, and stderr shows what faulthandler writes there.
CRASHES = """\
import ctypes, faulthandler, os, sys
from rollcall.record.on_request import crashes
crashes.write_to(os.open("crash", os.O_WRONLY | os.O_CREAT))
print(faulthandler.is_enabled())
DECISION
print(faulthandler.is_enabled(), flush=True)
ctypes.string_at(0)
"""
STACK = "Fatal Python error"


@pytest.mark.parametrize(
    ("decision", "options", "printed", "says_on_stderr", "writes_beside_ring"),
    [
        pytest.param("", (), "False\nFalse\n", False, True, id="none"),
        pytest.param("faulthandler.is_enabled() or faulthandler.enable()", (), "False\nTrue\n", True, False, id="asks"),
        pytest.param("print(faulthandler.disable())", (), "False\nFalse\nFalse\n", False, False, id="disables"),
        pytest.param("", ("-X", "faulthandler"), "True\nTrue\n", True, False, id="by an option"),
    ],
)
def test_faulthandler_is_the_programs(
    tmp_path: Path,
    decision: str,
    options: tuple[str, ...],
    printed: str,
    says_on_stderr: bool,
    writes_beside_ring: bool,
) -> None:
    """It sees what it would see without us, and a stack goes where it has chosen."""
    words = [sys.executable, *options, "-c", CRASHES.replace("DECISION", decision)]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (-signal.SIGSEGV, printed)
    assert (STACK in ran.stderr, STACK in (tmp_path / "crash").read_text()) == (says_on_stderr, writes_beside_ring)

"""`breakpoint()` under `rollcall run`, and `rollcall attach`, in real terminals (pexpect)."""

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.rollcall_command import ROLLCALL, Runner, until

pexpect = pytest.importorskip("pexpect")

HEAD = """\
import os, time
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=2))
rank = dist.get_rank()
x = torch.ones(1) * rank
"""
STOPS = HEAD + "if rank != 1:\n    breakpoint()\ndist.all_reduce(x)\nprint('sum', x.item())\n"
# All ranks leave after the same turn: the file may come between the looks of two of them.
LOOP = (
    HEAD
    + """\
stops = torch.zeros(1)
while not stops:
    stops += os.path.exists('stop')
    dist.all_reduce(stops)
    time.sleep(0.01)
"""
)


@contextmanager
def terminal(runner: Runner, *words: object) -> Iterator[Any]:
    process = pexpect.spawn(
        ROLLCALL[0],
        [str(word) for word in words],
        cwd=str(runner.folder),
        env=runner.env,
        encoding="utf-8",
        timeout=120,
    )
    try:
        yield process
    finally:
        process.close(force=True)


def ends(process: Any) -> int:
    process.expect(pexpect.EOF)
    process.close()
    return int(process.exitstatus)


def test_breakpoints(rollcall: Runner) -> None:
    """The prompt is that of one rank, then of the other; rank 1 waits in its op for longer than its group allows, and
    than --hang-after; in the end all go on."""
    with terminal(rollcall, "run", "-n", 3, "--hang-after", 1, rollcall.script(STOPS)) as run:
        run.expect(r"\(rank (\d)\) ")
        first = int(run.match[1])
        run.sendline("p rank + 40")
        run.expect(f"{first + 40}\r\n")
        run.expect(rf"\(rank {first}\) ")
        time.sleep(4)  # twice the limit of the group
        run.sendline("next rank")
        run.expect(rf"rank {2 - first} is in the debugger at script.py:9; rank {first} waits")
        run.expect(rf"\(rank {2 - first}\) ")
        run.sendline("c")
        run.expect(rf"\(rank {first}\) ")
        run.sendline("c")
        run.expect(r"sum 3\.0")
        assert "verdict" not in run.before
        assert ends(run) == 0


def test_fresh_interpreters(rollcall: Runner) -> None:
    """The same as in forks: one rank at a time, rank 1 waits for longer than its group allows; a process that a rank
    has started has Python's own debugger."""
    child = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'breakpoint()'], input=b'p 6 * 7\\nc\\n')\n"
    script = rollcall.script(child + STOPS.replace("if rank != 1", "if rank == 0"))
    with terminal(rollcall, "run", "-n", 2, "--start", "fresh", "--hang-after", 1, script) as run:
        run.expect(r"\(Pdb\) 42")
        run.expect(r"rank 0 is in the debugger at script.py:11")
        run.expect(r"\(rank 0\) ")
        run.sendline("p rank + 40")
        run.expect("40\r\n")
        time.sleep(3)  # longer than the limit of the group
        with terminal(rollcall, "attach", "--rank", 1) as attached:
            attached.expect(r"\(rank 1\) ")
            attached.sendline("p rank + 40")
            attached.expect("41\r\n")
            attached.sendline("q")
            assert ends(attached) == 0
        run.sendline("c")
        run.expect(r"sum 1\.0")
        assert ends(run) == 0


def test_quitting_leaves_no_rank_waiting(rollcall: Runner) -> None:
    """Ctrl-D at a prompt ends the program, as in Python; no process is left (the fixture looks)."""
    with terminal(rollcall, "run", "-n", 3, rollcall.script(STOPS)) as run:
        run.expect(r"\(rank \d\) ")
        run.sendeof()
        run.expect("bdb.BdbQuit")
        assert ends(run) == 1


def test_attach(rollcall: Runner) -> None:
    """To a rank of a live run, which goes on afterwards: longer than the limit of the group; a second debugger, a rank
    that is not there and a run that has ended are one sentence each."""
    run = rollcall.start("run", "-n", 2, "--hang-after", 1, rollcall.script(LOOP))
    rings = rollcall.latest() / "rings" / "attempt-0"
    assert until(lambda: (rings / "rank-1.ring").exists())
    with terminal(rollcall, "attach", "--rank", 1) as first:
        first.expect(r"\(rank 1\) ")
        first.sendline("p rank + 40")
        first.expect("41\r\n")
        second = rollcall("attach", "--rank", 1)
        assert (second.code, second.err) == (2, "rollcall: rank 1 has a debugger already: quit it first\n")
        missing = rollcall("attach", "--rank", 7)
        assert (missing.code, missing.err) == (2, "rollcall: there is no rank 7 in this run: it has ranks 0-1\n")
        time.sleep(3)  # longer than the limit of the group
        first.sendline("q")
        assert ends(first) == 0
    (rollcall.folder / "stop").touch()
    _, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert "verdict" not in err
    ended = rollcall("attach", "--rank", 1)
    assert ended.code == 2
    assert "has ended (ok): `rollcall explain` says where its ranks were" in ended.err


def test_looking_at_a_rank_that_hangs_in_an_op(rollcall: Runner) -> None:
    """It cannot be stepped, but its variables are there. When whoever looks is killed, the run goes on."""
    waits = HEAD.replace("2)", "200)") + (
        "dist.barrier()\nmine = rank + 40\n"
        "while rank == 0 and not os.path.exists('stop'):\n    time.sleep(0.05)\ndist.barrier()\n"
    )
    run = rollcall.start("run", "-n", 2, "--hang-after", 100, rollcall.script(waits), stderr=subprocess.PIPE)
    assert until(lambda: (rollcall.latest() / "rings" / "attempt-0" / "rank-1.ring").exists())
    with terminal(rollcall, "attach", "--rank", 1) as looking:
        looking.expect("it cannot be stepped")
        looking.expect(r"\(rank 1\) ")
        looking.sendline("p mine")
        looking.expect("41\r\n")
    (rollcall.folder / "stop").touch()
    _, err = run.communicate(timeout=60)
    assert run.returncode == 0, err


def test_the_rank_is_a_number(refused: Any) -> None:
    assert refused("attach", "--rank", "x").err.startswith("rollcall: --rank x does not name ranks")


def test_debugpy_on_another_host(rollcall: Runner) -> None:
    """The port that is printed is one of this machine, and leads through the launcher to the rank, whose loopback
    interface is another one: debugpy answers there."""
    pytest.importorskip("debugpy")
    run = rollcall.start("run", "-n", 1, "--virtual-hosts", 2, rollcall.script(LOOP))
    rings = rollcall.latest() / "rings" / "attempt-0"
    assert until(lambda: (rings / "rank-1.ring").exists())
    ports = rollcall("attach", "--rank", 1, "--debugpy")
    assert ports.code == 0, ports.err
    found = re.fullmatch(rf"rank 1: 127\.0\.0\.1:(\d+) on {re.escape(socket.gethostname())}\n", ports.out)
    assert found is not None, ports.out
    question = json.dumps({"seq": 1, "type": "request", "command": "initialize", "arguments": {"adapterID": "python"}})
    with socket.create_connection(("127.0.0.1", int(found[1])), 60) as client:
        client.sendall(f"Content-Length: {len(question)}\r\n\r\n{question}".encode())
        answers = b""
        while b'"supportsConfigurationDoneRequest"' not in answers:
            data = client.recv(1 << 16)
            assert data, answers
            answers += data
    (rollcall.folder / "stop").touch()
    _, err = run.communicate(timeout=60)
    assert run.returncode == 0, err

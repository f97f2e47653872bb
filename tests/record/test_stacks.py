"""Ranks are asked for their stacks by a signal, which must not end those that do not listen for it."""

import subprocess
import sys

import pytest

from rollcall.record.stacks import ASK, is_listening
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


def test_a_rank_whose_handler_was_reset_lives_on(rollcall: Runner) -> None:
    """A wait longer than --hang-after is looked into, and the run ends as it would without."""
    rollcall.script(RESET)
    ran = rollcall("run", "-n", 2, "--hang-after", 1, "script.py")
    assert (ran.code, ran.out.count("done ")) == (0, 2), ran.err


@pytest.mark.parametrize(("handler", "expected"), [("lambda *_: None", True), ("signal.SIG_DFL", False)])
def test_whether_a_process_listens_is_seen_from_outside(handler: str, expected: bool) -> None:
    """By what the kernel says of its handlers."""
    code = f"import signal\nsignal.signal({int(ASK)}, {handler})\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_listening(process.pid) is expected
        process.communicate(b"\n")
    assert not is_listening(process.pid)

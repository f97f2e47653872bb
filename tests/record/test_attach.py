"""Recording where another launcher started the ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollcall.record import attach
from tests.rollcall_command import Runner

ELSEWHERE = """
import rollcall, torch, torch.distributed as dist
with rollcall.init(record=True) as world:
    dist.all_reduce(torch.ones(4), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][world.rank])
"""


def test_a_program_records_itself_under_torchrun(rollcall: Runner) -> None:
    """By rollcall.init(record=True): explain and runs find it, and a silent bug is named. And plain torchrun can use
    our rendezvous: its agent meets on our handler."""
    rollcall.script(ELSEWHERE)
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    rendezvous = ["--rdzv-backend", "rollcall", "--rdzv-endpoint", "127.0.0.1:0"]
    command = [torchrun, *rendezvous, "--nproc-per-node", "2", "script.py"]
    subprocess.run(command, cwd=rollcall.folder, env=rollcall.env, check=True, capture_output=True)
    found = json.loads(rollcall("explain", "--json").out)
    assert (found["outcome"], found["verdict"]["kind"]) == ("ok", "mismatched-reduce-op")
    assert "script.py" in rollcall("runs").out


class _Store(dict[str, bytes]):
    """Of two ranks in one process: a key that is not there would be waited for."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]


def test_a_folder_that_cannot_be_made_keeps_no_rank_waiting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 tells the others; each says so in one line, and the program continues."""
    monkeypatch.setenv("ROLLCALL_DIR", "/proc/nowhere")
    store = _Store()
    for rank in (0, 1):
        attach.begin(store, rank, 2, 0)
    assert capsys.readouterr().err.splitlines() == [
        "rollcall: rank 0 is not recorded: cannot write to /proc/nowhere (No such file or directory)",
        "rollcall: rank 1 is not recorded: rank 0 could not make a folder for the recording",
    ]

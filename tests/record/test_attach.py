"""Recording where another launcher started the ranks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rollcall_command import Runner

ELSEWHERE = """
import rollcall, torch, torch.distributed as dist
with rollcall.init(record=True) as world:
    dist.all_reduce(torch.ones(4), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][world.rank])
"""


@pytest.mark.parametrize(
    "words", [["torchrun", "--standalone", "--nproc-per-node", "2"], ["rollcall", "run", "--start", "fresh", "-n", "2"]]
)
def test_recording_works_under_any_launcher(rollcall: Runner, words: list[str]) -> None:
    """By rollcall.init(record=True): explain and runs find it, and a silent bug is named."""
    rollcall.script(ELSEWHERE)
    command = [str(Path(sys.executable).with_name(words[0])), *words[1:], "script.py"]
    subprocess.run(command, cwd=rollcall.folder, env=rollcall.env, check=True, capture_output=True)
    found = json.loads(rollcall("explain", "--json").out)
    assert (found["outcome"], found["verdict"]["kind"]) == ("ok", "mismatched-reduce-op")
    assert "script.py" in rollcall("runs").out

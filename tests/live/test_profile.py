"""`rollcall profile`: torch.profiler in a rank of a running job, on one clock with the ops."""

import json
from typing import Any

import pytest

from tests.rollcall_command import Runner, until

# All ranks leave after the same turn: the file may come between the looks of two of them.
LOOP = """\
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
stops = torch.zeros(1)
dist.barrier()
while not stops:
    stops += os.path.exists("stop")
    dist.all_reduce(stops)
    time.sleep(0.01)
dist.barrier()
"""
OF_RANK = 1 << 17  # tracks of a rank in the trace


def test_kernels_beside_ops(rollcall: Runner) -> None:
    """The profile of rank 1 has the steps that were asked for, and the rank prints nothing of it. In the trace, each
    all_reduce that torch.profiler saw lies in one that was recorded. What cannot work is one sentence."""
    run = rollcall.start("run", "-n", 2, rollcall.script(LOOP))
    assert until(lambda: (rollcall.latest() / "rings" / "attempt-0" / "rank-1.ring").exists())
    profiled = rollcall("profile", "--rank", 1, "--steps", 3)
    assert profiled.code == 0, profiled.err
    assert "rank-1-0.profile.json.gz" in profiled.out
    missing = rollcall("profile", "--rank", 7)
    assert (missing.code, missing.err) == (2, "rollcall: there is no rank 7 in this run: it has ranks 0-1\n")
    (rollcall.folder / "stop").touch()
    _, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (0, "")
    assert rollcall("export", "--perfetto", "trace.json").code == 0
    events = json.loads((rollcall.folder / "trace.json").read_text())["traceEvents"]
    seen = [event for event in events if event.get("name") == "c10d::allreduce_"]
    recorded = [event for event in events if event["ph"] == "X" and is_all_reduce_of_rank_1(event)]
    assert len(seen) >= 3
    assert [event for event in seen if not any(is_in(event, op) for op in recorded)] == []


def is_all_reduce_of_rank_1(event: dict[str, Any]) -> bool:
    return bool(event["name"].startswith("all_reduce") and event["tid"] // OF_RANK == 2)


def is_in(event: dict[str, Any], op: dict[str, Any]) -> bool:
    """Give or take a millisecond, by which two clocks may differ that are read one after the other."""
    return bool(op["ts"] - 1000 <= event["ts"] <= op["ts"] + op["dur"] + 1000)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--steps 0", "--steps 0 profiles nothing"),
        ("--seconds 0", "is not a time"),
        ("--rank x", "does not name ranks"),
    ],
)
def test_what_cannot_work_is_one_sentence(refused: Any, words: str, said: str) -> None:
    result = refused("profile", *words.split())
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert said in result.err

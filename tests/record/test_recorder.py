"""What a run leaves in its rings, and what recording leaves alone."""

import json
import subprocess
import sys

import numpy as np
import pytest

from rollcall.explain.loading.load import load
from rollcall.explain.loading.rings import read
from rollcall.record import ring_format
from rollcall.record.cpp import library
from tests.record.recorded import HEAD, ops_of, run_recorded
from tests.rollcall_command import Runner


def test_results_are_the_same_with_and_without(runner: Runner) -> None:
    """Bit for bit."""
    body = "torch.manual_seed(rank)\nx = torch.randn(100)\n"
    body += "for _ in range(5):\n    dist.all_reduce(x)\nprint(x.numpy().tobytes().hex())\n"
    recorded, plain = (run_recorded(runner, HEAD + body, is_recorded=each) for each in (True, False))
    assert [rank.out for rank in recorded] == [rank.out for rank in plain]


def test_no_record_leaves_no_ring(rollcall: Runner) -> None:
    """And explain says so in one sentence."""
    rollcall.script(HEAD + "dist.all_reduce(t)\n")  # a rank that ends at once may cut off one that still connects
    assert rollcall("run", "-n", 2, "--no-record", "script.py").code == 0
    assert not (rollcall.latest() / "rings").exists()
    printed = rollcall("explain")
    assert printed.code == 2
    assert "has no rings, so there is nothing to explain" in printed.err


def test_a_small_ring_keeps_the_newest_ops_and_explain_says_so(runner: Runner) -> None:
    """Nothing is compared that it no longer has: a healthy run has no finding."""
    runner.script(HEAD + "for _ in range(12_000):\n    dist.all_reduce(t)\n")
    assert runner("run", "-n", 1, "--ring-mb", 1, "script.py").code == 0
    explained = json.loads(runner("explain", "--json").out)
    assert explained["findings"] == []
    assert [problem for problem in explained["problems"] if "kept its last" in problem]
    assert (runner.latest() / "rings" / "attempt-0" / "rank-0.ring").stat().st_size <= 1 << 20


def test_what_was_written_survives_a_kill(runner: Runner) -> None:
    """The op that a rank was killed in is in its ring, entered and not completed."""
    body = """
import os, time
from pathlib import Path
from rollcall.explain.loading.load import load
pid = torch.tensor(os.getpid())
dist.broadcast(pid, src=0)
if rank == 0:
    dist.recv(t, src=1)
while load(Path(".rollcall/runs/latest").resolve()).ranks[0].ops[-1].op != "recv":
    time.sleep(0.01)
os.kill(pid.item(), 9)
time.sleep(60)
"""
    runner.script(HEAD + body)
    assert runner("run", "-n", 2, "script.py").code == 137
    run = load(runner.latest().resolve())
    assert [op.op for op in run.ranks[0].ops] == ["init", "broadcast", "recv"]
    assert not run.ranks[0].ops[-1].completed_ns


def test_the_json_has_its_keys(runner: Runner) -> None:
    """run, outcome, verdict, findings, waits; a healthy run has no finding."""
    ops_of(runner, "for _ in range(3):\n    dist.all_reduce(t)\n")
    printed = json.loads(runner("explain", "--json").out)
    assert set(printed) >= {"run", "outcome", "verdict", "findings", "waits"}
    assert (printed["outcome"], printed["verdict"], printed["findings"]) == ("ok", None, [])
    assert [wait["rank"] for wait in printed["waits"]] == [0, 1]


PROGRAM = """\
import threading
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(8, 64)).square().mean().backward()
        optimizer.step()


def evaluate(deep):
    if deep:
        evaluate(deep - 1)
    elif dist.get_rank():
        model(torch.ones(8, 64))
    else:
        model(torch.ones(8, 64)); model(torch.ones(4, 64))


def average(tensor):
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()


train()
for _ in range(2):
    average(torch.ones(3))
with torch.no_grad():
    for deep in (0, 0, 1, 12, 1, 0):  # phases that begin where the last one did, and elsewhere
        evaluate(deep)
    evaluate(0)
work = dist.all_reduce(torch.ones(2), async_op=True)
work.wait()
other = dist.new_group([0, 1])
dist.broadcast(torch.ones(5), src=1, group=other)
(dist.send if dist.get_rank() == 0 else dist.recv)(torch.ones(2), 1 - dist.get_rank())
thread = threading.Thread(target=lambda: (average(torch.ones(4)), torch.no_grad()(evaluate)(0)))
thread.start()
thread.join()
try:
    model(torch.ones(8, 64)).square().mean().register_hook(lambda grad: 1 / 0)
    dist.all_reduce(torch.ones(1))
finally:
    dist.barrier()
"""
MOMENTS = ("entered_ns", "issued_ns", "completed_ns", "waited_ns")


def _recorded(runner: Runner, is_native: bool) -> list[tuple[np.ndarray, list[object]]]:
    """Of each rank, the records without samples, which come when they come; and the names."""
    runner.env["ROLLCALL_NATIVE"] = str(int(is_native))
    run_recorded(runner, PROGRAM)
    rings = [read(path) for path in sorted(runner.latest().glob("rings/attempt-0/*.ring"))]
    return [(ring.records[ring.records["op"] != ring_format.OP["sample"]], list(ring.names)) for ring in rings]


@pytest.mark.skipif(library is None, reason="needs `python -m rollcall.native`, which compiles it")
def test_both_languages_write_the_same(rollcall: Runner) -> None:
    """Every field of every record of a DDP training with all sorts of ops; of moments, whether they were noted."""
    by_cpp, by_python = _recorded(rollcall, True), _recorded(rollcall, False)
    assert len(by_cpp) == len(by_python) == 2
    for (cpp, cpp_names), (python, python_names) in zip(by_cpp, by_python, strict=True):
        assert {kind for kind, *_ in cpp_names} >= {"group", "site", "signature", "phase"}
        for field in python.dtype.names or ():
            if field in MOMENTS:
                assert ((cpp[field] > 0) == (python[field] > 0)).all(), field
            elif field == "number":  # samples are counted, too
                assert (np.diff(cpp[field].astype(np.int64)) > 0).all()
            else:
                assert _named(cpp, cpp_names, field) == _named(python, python_names, field), field


def _named(records: np.ndarray, names: list[object], field: str) -> list[object]:
    """Names in place of their numbers, which depend on what was seen first."""
    by_number = {number: value for _, number, value in names}  # type: ignore[misc]
    is_name = field in ("group", "site", "signature", "phase")
    return [by_number.get(value, value) if is_name else value for value in records[field].tolist()]


OLDER = """\
from torch.distributed import distributed_c10d
if hasattr(distributed_c10d, "GroupName"):
    del distributed_c10d.GroupName
from rollcall.record import recorder
recorder.prepare()
"""


def test_the_recorder_needs_no_group_name() -> None:
    """torch 2.9 has no GroupName."""
    ran = subprocess.run([sys.executable, "-c", OLDER], capture_output=True, text=True, timeout=180)
    assert ran.returncode == 0, ran.stderr

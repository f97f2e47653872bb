"""The C++ recorder writes what the Python recorder writes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rollcall.explain.rings import read
from rollcall.record import ring_format
from rollcall.record.cpp import library
from tests.rollcall_command import Runner

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
is_built = pytest.mark.skipif(library is None, reason="needs `python -m rollcall.native`, which compiles it")


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def _recorded(runner: Runner, is_native: bool) -> list[tuple[np.ndarray, list[object]]]:
    """Of each rank, the records without samples, which come when they come; and the names."""
    runner.env["ROLLCALL_NATIVE"] = str(int(is_native))
    ran = runner("run", "-n", 2, "script.py")
    assert ran.code == 0, ran.err
    rings = [read(path) for path in sorted(runner.latest().glob("rings/attempt-0/*.ring"))]
    return [(ring.records[ring.records["op"] != ring_format.OP["sample"]], list(ring.names)) for ring in rings]


@is_built
def test_it_writes_what_python_writes(runner: Runner) -> None:
    """Every field of every record of a DDP training with all sorts of ops; of moments, whether they were noted."""
    runner.script(PROGRAM)
    by_cpp, by_python = _recorded(runner, True), _recorded(runner, False)
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


WRAP = """\
import sys
from pathlib import Path
from rollcall.record import ring_format
from rollcall.record.cpp.ring import CppRing
from rollcall.record.ring import Ring

ring_class = CppRing if sys.argv[2] == "cpp" else Ring
small = ring_format.RECORDS_AT + 20 * ring_format.RECORD.size
ring = ring_class(Path(sys.argv[1]), rank=0, world_size=1, attempt=0, host="here", size_bytes=small)
if ring_class is CppRing:
    ring.attach(ring)
ops = [ring_format.OP[name] for name in ("all_reduce", "send", "phase")]
for number in range(50):
    at = ring.add(ops[number % 3], group=1 + number % 2, size_bytes=number)
    assert ring.newest() == (number + 1, at)
"""


@is_built
def test_it_wraps_as_python_does(tmp_path: Path) -> None:
    """The newest records are there, and what was overwritten is in the counters."""
    read_back = []
    for language in ("cpp", "python"):
        path = tmp_path / f"{language}.ring"
        subprocess.run([sys.executable, "-c", WRAP, str(path), language], check=True, timeout=60)
        ring = read(path)
        records = ring.records.copy()
        records["entered_ns"] = 0
        read_back.append((ring.header.count, records.tolist(), ring.counters))
    assert read_back[0] == read_back[1]
    assert read_back[0][0] == 50


COMPILED = """\
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
model = torch.compile(nn.parallel.DistributedDataParallel(nn.Linear(8, 8)), backend="eager")
for _ in range(3):
    model(torch.ones(2, 8)).sum().backward()
print("done")
"""


def test_a_ddp_module_may_be_compiled(runner: Runner) -> None:
    """torch.compile does not meet the recorder, and has nothing to say about it."""
    runner.script(COMPILED)
    ran = runner("run", "-n", 2, "script.py")
    assert (ran.code, "rollcall" in ran.out + ran.err) == (0, False), ran.err

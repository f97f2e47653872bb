"""What is recorded of a DDP training."""

import pytest

from rollcall.explain.loading.load import load
from rollcall.record.cpp import library
from tests.record.recorded import ops_of, run_recorded
from tests.rollcall_command import Runner

DDP = """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
del model
"""


def test_what_ddp_starts_in_cpp_is_recorded(runner: Runner) -> None:
    """Its all-reduces, with the bucket and the user's line, from their beginning to the end of backward."""
    ops = ops_of(runner, DDP)
    for rank in (0, 1):
        buckets = [op for op in ops[rank] if op.is_bucket]
        assert [(op.op, op.reduce, op.signature["splits"][:2]) for op in buckets] == [
            ("all_reduce", "SUM", ["bucket", 0])
        ] * 2
        assert all(op.completed_ns >= op.waited_ns >= op.issued_ns >= op.entered_ns > 0 for op in buckets)
        assert {str(op.site) for op in buckets} == {"script.py:10"}


def test_torchs_own_hooks_see_ddp_where_torch_has_them(runner: Runner) -> None:
    """From torch 2.15 on; before, a kernel in its dispatcher."""
    has_kernel = 'torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "AutogradCPU")'
    has_hooks = 'hasattr(dist.ProcessGroup, "register_pre_hook")'
    ops = ops_of(runner, f"{DDP}\nassert {has_kernel} is not {has_hooks}\n")
    assert sum(op.is_bucket for op in ops[0]) == 2


def test_training_has_its_phases(runner: Runner) -> None:
    """Forward, backward and step by themselves, where there is a DDP module; others by `rollcall.phase`."""
    body = DDP + 'import rollcall\nwith rollcall.phase("evaluate"):\n    dist.all_reduce(t)\n'
    assert ops_of(runner, body)[0][-1].phase == "evaluate"
    phases = [op.phase for op in load(runner.latest().resolve()).ranks[0].events if op.phase and op.op != "sample"]
    assert phases == ["forward", "backward", "step"] * 2 + ["evaluate"]


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
    for rank in run_recorded(runner, COMPILED):
        assert "rollcall" not in rank.out + rank.err


BROKEN = """\
import sys, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))

def broken(*_):
    raise ValueError("broken")

if "rollcall.record.recorder" in sys.modules:
    from rollcall.record import recorder
    if recorder.current() is not None:
        recorder.current().name_bucket = broken
for _ in range(3):
    model(torch.ones(2, 8)).sum().backward()
print(model.module.weight.grad.sum().item())
"""


@pytest.mark.skipif(library is None, reason="needs `python -m rollcall.native`, which compiles it")
@pytest.mark.parametrize("language", ["cpp"])
def test_an_error_of_the_cpp_kernel_does_not_reach_the_program(runner: Runner) -> None:
    """DDP's buckets pass no hook of Python: recording ends with one line, and gradients are the same."""
    expected, ran = run_recorded(runner, BROKEN, is_recorded=False), run_recorded(runner, BROKEN)
    assert [rank.out for rank in ran] == [rank.out for rank in expected]
    for rank in ran:
        assert "recording stopped in the C++ recorder: ValueError: broken; the program continues" in rank.err

"""What is recorded of functional collectives."""

from tests.record.recorded import ops_of
from tests.rollcall_command import Runner

FUNCTIONAL = """
import torch.distributed._functional_collectives as functional
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
print(functional.all_reduce(t, "sum", dist.group.WORLD) + 1)
print(distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (2,)), [Shard(0)]).sum().full_tensor())
compiled = torch.compile(lambda x: functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1, backend="aot_eager")
print(compiled(t))
"""


def test_functional_collectives_are_recorded(runner: Runner) -> None:
    """By themselves, below DTensor, and in compiled programs: each once, and waited for when its result is used."""
    ops = ops_of(runner, FUNCTIONAL)
    for rank in (0, 1):
        seen = [(str(op.site), op.op) for op in ops[rank] if op.op == "all_reduce"]
        assert seen == [(f"script.py:{line}", "all_reduce") for line in (8, 9, 10)]
        assert all(op.completed_ns for op in ops[rank])


IN_A_MODE = """
import warnings
import torch.distributed._functional_collectives as functional
from torch._subclasses.fake_tensor import FakeTensorMode
warnings.simplefilter("error")
with FakeTensorMode(allow_non_fake_inputs=True):
    functional.all_reduce(t, "sum", dist.group.WORLD)
dist.all_reduce(t)
"""


def test_a_result_without_data_is_not_asked_for_its_address(runner: Runner) -> None:
    """torch warns of that. The tensor is real, but a mode of the program has taken the call: nothing is to be waited
    for, and the recording goes on."""
    ops = ops_of(runner, IN_A_MODE)
    for rank in (0, 1):
        assert [op.op for op in ops[rank]] == ["init", "all_reduce", "all_reduce"]
        assert all(op.completed_ns for op in ops[rank] if op.op == "all_reduce")


def test_sharded_modules_are_recorded(runner: Runner) -> None:
    """FSDP2 gathers parameters and scatters gradients."""
    body = (
        "from torch.distributed.fsdp import fully_shard\n"
        "from torch.distributed.tensor import init_device_mesh\n"
        "model = torch.nn.Linear(8, 8)\n"
        'fully_shard(model, mesh=init_device_mesh("cpu", (2,)))\n'
        "model(torch.ones(2, 8)).sum().backward()\n"
    )
    ops = ops_of(runner, body)
    assert {"all_gather", "reduce_scatter"} <= {op.op for op in ops[0]}

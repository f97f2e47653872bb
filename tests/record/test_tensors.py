"""Unusual tensors: recording does not change what torch does with them, and continues."""

import pytest
import torch

from rollcall.explain.loading.load import load
from rollcall.record.tensors import describe, shape_of, version
from tests.record.recorded import run_recorded
from tests.rollcall_command import Runner

HEAD = """\
import sys, warnings
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
warnings.simplefilter("ignore")
dist.init_process_group("gloo")
rank = dist.get_rank()
"""
SPARSE_GRADIENTS = """
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Embedding(10, 4, sparse=True))
for _ in range(2):
    model.zero_grad()
    model(torch.tensor([rank, 2, 3])).sum().backward()
print(rank, model.module.weight.grad.to_dense().sum().item())
dist.all_reduce(torch.ones(3))
"""
# A module of unusual parameters and buffers, wrapped in DDP.
UNUSUAL_MODULE = """
class Unusual(nn.Module):
    def __init__(self):
        super().__init__()
        self.turned = nn.Parameter(torch.arange(12.0).reshape(3, 4).t())
        self.waves = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.nothing = nn.Parameter(torch.ones(0))
        self.image = nn.Conv2d(4, 4, 1).to(memory_format=torch.channels_last)
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.seen += 1
        image = self.image(x.reshape(1, 4, 1, 1)).sum()
        return (self.turned.t() @ x * self.mask).sum() + self.waves.abs().sum() + self.nothing.sum() + image

torch.manual_seed(0)
unusual = nn.parallel.DistributedDataParallel(Unusual())
for _ in range(2):
    unusual(torch.ones(4) * (rank + 1)).backward()
for name, parameter in unusual.module.named_parameters():
    print(rank, name, parameter.grad.flatten().tolist())
dist.all_reduce(torch.ones(3))
"""
# Each in every op, with the result or the error that the program sees.
UNUSUAL = """
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.testing._internal.two_tensor import TwoTensor

class Plain(torch.Tensor):
    pass

class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (dist.all_reduce, dist.broadcast, dist.all_gather, dist.send, dist.recv):
            return super().__torch_function__(function, types, args, kwargs)
        raise ValueError("not for you")

mesh, fakes = init_device_mesh("cpu", (2,)), FakeTensorMode()
made = {
    "coo": lambda: torch.eye(3).to_sparse(),
    "csr": lambda: torch.eye(3).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "complex": lambda: torch.ones(3, dtype=torch.complex64),
    "conjugated": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "bool": lambda: torch.ones(3, dtype=torch.bool),
    "meta": lambda: torch.ones(3, device="meta"),
    "empty": lambda: torch.ones(0),
    "turned": lambda: torch.ones(3, 4).t(),
    "inference": torch.inference_mode()(lambda: torch.ones(3)),
    "subclass": lambda: torch.ones(3).as_subclass(Plain),
    "dtensor": lambda: distribute_tensor(torch.ones(4), mesh, [Shard(0)]),
    "fake": lambda: fakes.from_tensor(torch.ones(3)),
    "wrapper": lambda: TwoTensor(torch.ones(3), torch.ones(3)),
    "refusing": lambda: torch.ones(3).as_subclass(Refusing),
    "parameter": lambda: nn.Parameter(torch.ones(3), requires_grad=False),
}
ops = {
    "all_reduce": lambda make: dist.all_reduce(make()),
    "all_reduce later": lambda make: dist.all_reduce(make(), async_op=True).wait(),
    "method": lambda make: dist.group.WORLD.allreduce([make(), make()]).wait(),
    "broadcast": lambda make: dist.broadcast(make(), 0),
    "all_gather": lambda make: dist.all_gather([make(), make()], make()),
    "functional": lambda make: functional.all_reduce(make(), "sum", dist.group.WORLD) + 0,
    "all_to_all": lambda make: dist.all_to_all_single(make(), make()),
}
for name, make in made.items():
    for op, call in ops.items():
        try:
            said = repr(call(make))
        except Exception as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
        if rank == 0:
            print(name, op, said)
dist.all_reduce(torch.ones(3))
"""


def _outputs(runner: Runner, script: str, is_recorded: bool) -> list[str]:
    ran = run_recorded(runner, script, is_recorded=is_recorded)
    assert not any("recording stopped" in rank.err for rank in ran), ran
    return [rank.out for rank in ran]


def test_sparse_gradients_are_averaged_and_recorded(runner: Runner) -> None:
    """DDP's reducer sends them in C++: indices and values, here of three rows."""
    plain = _outputs(runner, HEAD + SPARSE_GRADIENTS, is_recorded=False)
    assert _outputs(runner, HEAD + SPARSE_GRADIENTS, is_recorded=True) == plain
    for rank in load(runner.latest().resolve()).ranks.values():
        buckets = [op for op in rank.ops if op.is_bucket]
        assert [(op.size_bytes, op.signature["shapes"]) for op in buckets] == [(3 * (4 * 4 + 8), [[10, 4]])] * 2
        assert rank.ops[-1].op == "all_reduce"
        assert not rank.ops[-1].is_bucket


def test_unusual_parameters_are_trained_alike(runner: Runner) -> None:
    """Not contiguous, complex and empty parameters, and a buffer of booleans: DDP gets the same gradients."""
    plain = _outputs(runner, HEAD + UNUSUAL_MODULE, is_recorded=False)
    assert [out.count("\n") for out in plain] == [5, 5]
    assert _outputs(runner, HEAD + UNUSUAL_MODULE, is_recorded=True) == plain
    for rank in load(runner.latest().resolve()).ranks.values():
        assert str(rank.ops[-1].site) == f"script.py:{(HEAD + UNUSUAL_MODULE).count(chr(10))}"
        assert [op.completed_ns > 0 for op in rank.ops if op.is_bucket]


def test_the_program_sees_what_torch_says_of_unusual_tensors(runner: Runner) -> None:
    """Its result or its error, the same with and without recording, which continues afterwards."""
    plain = _outputs(runner, HEAD + UNUSUAL, is_recorded=False)
    assert _outputs(runner, HEAD + UNUSUAL, is_recorded=True) == plain
    for rank in load(runner.latest().resolve()).ranks.values():
        assert str(rank.ops[-1].site) == f"script.py:{(HEAD + UNUSUAL).count(chr(10))}"
        assert sum(op.op == "broadcast" for op in rank.ops) > 10


class _Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_: object) -> object:
        raise ValueError("not for you")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_tensor_can_be_described() -> None:
    """Of sparse ones, what is sent counts; a size that differs within a nested one is -1."""
    nested = [torch.ones(2, 3), torch.ones(4, 3)]
    assert describe(torch.ones(2, 3)) == (24, (2, 3), torch.float32, "cpu")
    assert describe(torch.eye(3).to_sparse()) == (3 * (2 * 8 + 4), (3, 3), torch.float32, "cpu")
    assert describe(torch.eye(3).to_sparse_csr()) == (3 * (8 + 4) + 4 * 8, (3, 3), torch.float32, "cpu")
    assert describe(torch.nested.nested_tensor(nested)) == (72, (2, -1, 3), torch.float32, "cpu")
    assert describe(torch.nested.nested_tensor(nested, layout=torch.jagged)) == (72, (2, -1, 3), torch.float32, "cpu")
    assert describe(torch.ones(3).as_subclass(_Refusing)) == (12, (3,), torch.float32, "cpu")
    assert describe(torch.ones(3, device="meta")) == (12, (3,), torch.float32, "meta")
    assert describe("no tensor") == (0, (), None, "")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_tensor_has_a_shape_and_a_version() -> None:
    """Where there is none, it is empty or 0."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    tensors = [torch.ones(2).add_(1), torch.ones(2).as_subclass(_Refusing), nested, None]
    assert [shape_of(tensor) for tensor in tensors] == [(2,), (2,), (2, -1), ()]
    assert [version(tensor) for tensor in tensors] == [1, 0, 0, 0]

"""A torch that lacks names which rollcall uses: ranks start, the rest is recorded, and one line says what is not."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from rollcall.compat import torch_groups, torch_timeouts
from rollcall.explain.loading.load import load
from rollcall.record import tensors
from tests.rollcall_command import Runner

# Python imports it at its start. As soon as torch is there, the names are not.
SITE = """\
import sys
from functools import reduce
from importlib import import_module
from importlib.machinery import PathFinder

NAMES = {names!r}


class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (execute(module), remove())
        return spec


def remove():
    sys.meta_path.remove(Finder)
    for name in NAMES:
        module, _, attributes = name.partition(":")
        *owners, last = attributes.split(".")
        owner = reduce(getattr, owners, import_module(module))
        if hasattr(owner, last):
            delattr(owner, last)


sys.meta_path.insert(0, Finder)
"""
# What the program below does not need. Of reduce_scatter there are other names; register_pre_hook came with torch 2.15.
GONE = (
    "torch:_C._after_autograd_keyset",
    "torch.distributed:ProcessGroup.barrier",
    "torch.distributed:ProcessGroup.monitored_barrier",
    "torch.distributed:ProcessGroup._reduce_scatter_base",
    "torch.distributed:ProcessGroup.register_pre_hook",
    "torch.distributed:all_gather_object",
    "torch.distributed.distributed_c10d:all_gather_object",
    "torch.distributed.distributed_c10d:_warn_not_in_group",
    "torch.optim.optimizer:register_optimizer_step_pre_hook",
)
MISSING = ["all_gather_object", "a call of a non-member", "barrier", "DDP's all_reduce", "step"]
PROGRAM = """\
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
model = DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
dist.all_reduce(torch.ones(3), async_op=True).wait()
dist.destroy_process_group()
"""


@pytest.fixture
def newer(rollcall: Runner, tmp_path: Path) -> Runner:
    """`rollcall` with a torch that has lost names."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE.format(names=GONE))
    rollcall.env["PYTHONPATH"] = f"{site}:{rollcall.env.get('PYTHONPATH', '')}"
    return rollcall


def _missing(text: str) -> int:
    found = re.search(r"seen (\d+) of (\d+)", text)
    assert found, text
    return int(found[2]) - int(found[1])


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_run_starts_and_says_what_it_does_not_record(newer: Runner, native: str) -> None:
    """Once, not for each rank; ops that still have a hook are recorded."""
    newer.env["ROLLCALL_NATIVE"] = native
    newer.script(PROGRAM)
    ran = newer("run", "-n", 2, "script.py")
    assert ran.code == 0, ran.err
    said = [line for line in ran.err.splitlines() if "not everything is recorded" in line]
    assert len(said) == 1, ran.err
    assert _missing(said[0]) == len(MISSING)
    assert all(name in said[0] for name in MISSING)
    ops = {rank.number: [op.op for op in rank.ops] for rank in load(newer.latest().resolve()).ranks.values()}
    assert [names.count("all_reduce") for names in ops.values()] == [2, 2]


def test_the_doctor_lists_the_hooks(newer: Runner) -> None:
    """How many have a place, and the names of those that have none."""
    line = next(line for line in newer("doctor").out.splitlines() if "hooks of the recorder" in line)
    counted, _, missing = line.partition(", no place for ")
    assert _missing(counted) == len(MISSING)
    assert sorted(missing.strip().split(", ")) == sorted(MISSING)


def test_a_limit_that_torch_does_not_tell_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group keeps the one that it was made with."""
    monkeypatch.delattr(distributed_c10d, "_get_default_timeout")
    assert torch_timeouts.default_limit("gloo") is None


def test_a_group_is_known_without_private_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as public functions go."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        assert (torch_groups.ranks_of(group), torch_groups.all_groups()) == ([0], [group])
        assert torch_groups.group_named(group.group_name) is group
        monkeypatch.delattr(distributed_c10d, "_resolve_process_group")
        assert torch_groups.group_named("another") is group
    finally:
        dist.destroy_process_group()


def test_a_tensor_is_described_where_subclasses_cannot_be_bypassed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a subclass is not, since its code would run."""
    monkeypatch.setattr(tensors, "_without_subclass", tensors._CannotBypass)
    assert tensors.describe(torch.ones(2, 3)).shape == (2, 3)
    assert tensors.describe(torch.nn.Parameter(torch.ones(2))).device == ""

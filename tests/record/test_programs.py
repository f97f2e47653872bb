"""Programs that do unusual things to their own process, or call functions in unusual ways: recording neither changes
what they get, nor ends."""

import os
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from rollcall.errors import say_if_possible
from rollcall.explain.loading.load import load
from rollcall.explain.verdict import explain
from rollcall.record import sites
from rollcall.record.own_file import OwnFile
from rollcall.record.tensors import describe
from tests.blame import blamed
from tests.record.recorded import HEAD, run_recorded
from tests.rollcall_command import Runner

# What can be read only once is the program's to read. Numbers may be numpy's, or tensors.
GENERATORS = """
import numpy as np

def shown(*tensors): print(*(tensor.tolist() for tensor in tensors))

pair = dist.new_group(each for each in range(size))
dist.all_reduce(t, group=pair)
dist.group.WORLD.allreduce(each for each in [t]).wait()
received = torch.empty(4)
dist.all_to_all_single(received, t, (2 for _ in range(size)), (2 for _ in range(size)))
dist._broadcast_coalesced(dist.group.WORLD, (each for each in [t]), 1024, 1)
dist._broadcast_coalesced(process_group=dist.group.WORLD, tensors=[t], buffer_size=1024, src=1)
dist.new_group(torch.arange(size))
dist.all_to_all_single(received, t, np.array([2] * size), np.array([2] * size))
dist.all_gather_object(object_list=(objects := [None] * size), obj=rank)
shown(t, received, torch.tensor(objects))
"""
# Python or torch refuses all of these.
WRONG_CALLS = """
import os, signal

def refused(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:
        print(type(error).__name__)
    else:
        raise AssertionError(function)

refused(os.kill, 1)
refused(os.kill, "1", "9")
refused(os._exit)
refused(os._exit, "0")
refused(signal.raise_signal, "9")
refused(dist.new_group, 5)
refused(dist.split_group, 3, 4)
refused(dist.ProcessGroup.allreduce)
refused(dist.ProcessGroup.allreduce, 3, [t])
refused(dist._broadcast_coalesced)
refused(torch.nn.parallel.DistributedDataParallel)
refused(torch.nn.parallel.DistributedDataParallel, 3)
refused(torch.nn.parallel.DistributedDataParallel.forward)
refused(torch.nn.parallel.DistributedDataParallel.__init__, module=torch.nn.Linear(1, 1))
for method in (dist.Work.wait, dist.Work.is_completed, dist.Work.result, dist.Work.get_future):
    refused(method)
world, ops, name = dist.group.WORLD, torch.ops._c10d_functional, dist.group.WORLD.group_name
refused(world.send, [t], "1", 0)
refused(world.send, [t], 1, 2**40)
refused(world.broadcast, t, 2**40)
refused(ops.all_reduce, t, "sum", "no group")
refused(ops.all_reduce, None, "sum", name)
refused(ops.all_reduce, t, "sum", 5)
refused(ops.all_to_all_single, t, None, None, name)
refused(ops.broadcast, t, "0", name)
if hasattr(ops, "batch_p2p_ops"):  # from torch 2.13 on
    refused(ops.batch_p2p_ops, ["isend"], [0, 1], [0], [t], name)
    refused(ops.batch_p2p_ops, ["isend"], [0], [0], [t], "no group")
refused(torch.ops.symm_mem.one_shot_all_reduce, t, "sum", "no group")
"""
PICKLED = """
import os, pickle, signal
from torch.distributed import distributed_c10d as c10d

torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))  # comes with hooks of its own
functions = [os.kill, os.abort, os._exit, signal.raise_signal, torch.autograd.backward]
for name in ("init_process_group", "new_group", "split_group", "all_gather_object", "broadcast_object_list"):
    functions += [getattr(dist, name), getattr(c10d, name)]
    assert functions[-1] is functions[-2]
for function in functions:
    assert pickle.loads(pickle.dumps(function)) is function
print(len(functions))
"""
# What a mode sees is what the program does, and not what the recorder reads.
MODES = """
import torch.distributed._functional_collectives as functional
from torch.overrides import TorchFunctionMode

class Seen(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        print(getattr(function, "__name__", function))
        return function(*args, **(kwargs or {}))

module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(module.parameters(), 0.1)
with Seen():
    dist.all_reduce(t, async_op=True).wait()
    functional.wait_tensor(functional.all_reduce(t, "sum", dist.group.WORLD))
    module(t).sum().backward()
    optimizer.step()
"""
# Frameworks look at arguments before they give them. A scripted function cannot call a function of Python.
SIGNATURES = """
import inspect

for function in (module.__init__, type(module).forward, dist.new_group, dist.init_process_group):
    print(inspect.signature(function), len(inspect.getfullargspec(function).args))
print(inspect.getfullargspec(type(module)).args, inspect.getfullargspec(torch.autograd.backward).args)

def reduce(x: torch.Tensor, group: str):
    return torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(x, "sum", group))

print(torch.jit.script(reduce)(torch.ones(2), dist.group.WORLD.group_name).tolist())
"""
# Methods of C++ that classes of Python override: they call each other, and torch asks who calls.
SUBCLASSES = """
from torch.distributed import distributed_c10d as c10d

class Group(dist.ProcessGroup):  # it has no name
    def __init__(self, prefix):
        super().__init__(rank, size)
        gloo = dist.ProcessGroupGloo(dist.PrefixStore(prefix, c10d._get_default_store()), rank, size)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    def allreduce(self, tensors, options):
        print("called")
        return super().allreduce(tensors, options)

class Handle(dist.Work):
    def is_completed(self):
        return super().is_completed()

group = Group("calls")
group.allreduce([t], dist.AllreduceOptions()).wait()
group.broadcast([t]).wait()
# DDP begins with an op that holds the GIL (torch 2.13). It waits forever if a worker of gloo is just then dropping the
# tensors of an earlier op, for which it needs the GIL: so this group has none.
group = Group("module")
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1), process_group=group)(t).backward()
print(t.tolist(), Handle().is_completed())
"""
LAST = "dist.all_reduce(t)\n"


@pytest.mark.parametrize(
    "body",
    [GENERATORS, WRONG_CALLS + PICKLED, MODES + SIGNATURES, SUBCLASSES],
    ids=["generators", "wrong calls, pickled", "modes, signatures", "subclasses"],
)
def test_the_program_gets_the_same_and_recording_goes_on(runner: Runner, body: str) -> None:
    """Generators are not used up, wrong calls are refused by those who are called, pickle finds the functions; modes,
    inspect, torch.jit and overrides find what they find without recording."""
    plain, recorded = (run_recorded(runner, HEAD + body + LAST, is_recorded=each) for each in (False, True))
    assert [rank.out for rank in recorded] == [rank.out for rank in plain]
    assert all(rank.out for rank in recorded)
    for rank in load(runner.latest().resolve()).ranks.values():
        assert rank.ops[-1].op == "all_reduce"
        assert rank.ops[-1].site.line == (HEAD + body + LAST).count("\n")
        assert rank.ops[-1].completed_ns


# Each rank says the same in another way. Options that torch has a default for are left out, or given.
IN_OTHER_WORDS = """
from torch._C import _distributed_c10d as options
world, ops, name, y, rows = dist.group.WORLD, torch.ops._c10d_functional, dist.group.WORLD.group_name, t.clone(), [t, t]
pairs = [
    (lambda: world.allreduce(tensors=[t], opts=options.AllreduceOptions()), lambda: world.allreduce([t])),
    (lambda: world.allreduce([t], dist.ReduceOp.MAX), lambda: world.allreduce(t, op=dist.ReduceOp.MAX)),
    (lambda: world.broadcast(t, 0), lambda: dist.broadcast(t, src=0, async_op=True)),
    (lambda: world.reduce(root=0, tensor=t), lambda: world.reduce([t], options.ReduceOptions())),
    (lambda: world.send(tensors=[t], dstRank=1, tag=3), lambda: world.recv([t], 0, 3)),
    (lambda: world.allgather(input_tensors=[t], output_tensors=[rows]), lambda: world.allgather([rows], [t])),
    (lambda: world.reduce_scatter([t], [rows]), lambda: world.reduce_scatter(output=t, input=rows)),
    (lambda: world.barrier(opts=options.BarrierOptions()), lambda: world.barrier()),
    (
        lambda: world.alltoall_base(y, t, [], [], options.AllToAllOptions()),
        lambda: world.alltoall_base(input=t, output=y, input_split_sizes=[], output_split_sizes=[]),
    ),
]
for pair in pairs:
    pair[rank]().wait()
for first, second in (
    (lambda: ops.all_reduce(t, "sum", name), lambda: ops.all_reduce(group_name=name, input=t, reduce_op="sum")),
    (lambda: ops.broadcast(t, 0, name), lambda: ops.broadcast(t, src=0, group_name=name)),
):
    ops.wait_tensor(tensor=second() if rank else first())
"""


def test_ranks_may_say_the_same_in_other_words(runner: Runner) -> None:
    """Arguments by name, torch's overloads, and options that are left out: nobody is blamed, and all is recorded."""
    run_recorded(runner, HEAD + IN_OTHER_WORDS)
    assert blamed(explain(runner.latest().resolve())) == []
    counts = [len(rank.ops) for rank in load(runner.latest().resolve()).ranks.values()]
    assert counts[0] == counts[1] == 1 + 11  # with init_process_group


WAITS_FOR_SIGNAL = """\
import os, signal, torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
dist.all_reduce(torch.ones(2))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
assert signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1
"""


def test_no_thread_of_the_recorder_takes_a_signal(runner: Runner) -> None:
    """One that the program blocks, to wait for it: the process would die of it. This backend has no other thread."""
    assert [rank.code for rank in run_recorded(runner, WAITS_FOR_SIGNAL, ranks=1)] == [0]


NEVER_WAITED = """
import gc, time, weakref
import torch.distributed._functional_collectives as functional

def make(call):
    tensors = [torch.ones(8) for _ in range(9)]
    for tensor in tensors:
        call(tensor)
    return [weakref.ref(tensor) for tensor in tensors]

options = dist.AllreduceOptions()
options.asyncOp = False
kept = make(lambda tensor: dist.group.WORLD.allreduce([tensor], options))
kept += make(lambda tensor: functional.all_reduce(tensor, "sum", dist.group.WORLD))
for _ in range(2):
    dist.all_reduce(t)
deadline = time.monotonic() + 10
while any(each() is not None for each in kept) and time.monotonic() < deadline:
    time.sleep(0.01)
print(sum(each() is not None for each in kept))
"""


def test_what_nobody_waits_for_is_not_kept(runner: Runner) -> None:
    """Neither the handle of an op, nor the tensor that a functional collective was called with."""
    assert [rank.out for rank in run_recorded(runner, HEAD + NEVER_WAITED)] == ["0\n", "0\n"]


# The program's own files get the numbers of the recorder's.
FILES_CLOSED = """
import os
own = {}
for number in map(int, os.listdir("/proc/self/fd")):
    try:
        place = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        continue
    if place.endswith((".ring", ".stacks")):
        own[number] = os.open(f"own-{rank}-{number}", os.O_RDWR | os.O_CREAT)
        os.dup2(own[number], number)
assert len(own) >= 2
for _ in range(1500):
    dist.all_reduce(t)
    t.fill_(1)
print([os.fstat(number).st_size for number in own.values()])
"""


def test_a_program_that_closes_all_files_keeps_its_own(runner: Runner) -> None:
    """A ring grows by writes to its file, whose number may be that of another file by then; every op is recorded."""
    for rank in run_recorded(runner, HEAD + FILES_CLOSED):
        assert set(rank.out.strip("[]\n").split(", ")) == {"0"}, rank.out
    for each in load(runner.latest().resolve()).ranks.values():
        assert sum(op.op == "all_reduce" for op in each.ops) == 1500


def test_a_file_that_was_closed_is_opened_again(tmp_path: Path) -> None:
    """But not one that has taken its place."""
    file = OwnFile(tmp_path / "a", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    number = file.fd
    os.close(number)
    with open(tmp_path / "b", "wb") as other:
        os.dup2(other.fileno(), number)
        os.write(file.fd, b"ours")
        assert other.tell() == 0
    assert (tmp_path / "a").read_bytes() == b"ours"
    os.close(file.fd)
    (tmp_path / "a").rename(tmp_path / "c")
    (tmp_path / "a").touch()
    with pytest.raises(OSError, match="another file has taken its place"):
        _ = file.fd
    os.close(number)


OWN_HANDLER = """
import os, signal, time
from pathlib import Path
from rollcall.record.on_request.stacks import ASK, is_listening
mapped = [line.split()[-1] for line in open("/proc/self/maps")]
ring = next(Path(each) for each in mapped if each.endswith(".ring"))
assert is_listening(os.getpid(), ring)
signal.signal(ASK, lambda *_: None)
while is_listening(os.getpid(), ring):
    time.sleep(0.01)
"""


def test_a_handler_of_the_program_is_not_called_by_us(runner: Runner) -> None:
    """The rank says in its ring that the signal is the program's: nobody sends it then."""
    run_recorded(runner, HEAD + LAST + OWN_HANDLER)


def test_what_is_said_cannot_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may have no stderr, or one that is closed."""
    closed = open(os.devnull, "w")  # noqa: SIM115  (it is closed at once)
    closed.close()
    for stderr in (None, closed):
        monkeypatch.setattr(sys, "stderr", stderr)
        say_if_possible("not heard")


def test_code_that_is_made_all_the_time_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code beyond the limit is not kept, and nobody's."""
    monkeypatch.setattr(sites, "_known", {})
    monkeypatch.setattr(sites, "MOST_CODES", 10)
    codes = [compile("1", f"/home/me/step-{number}.py", "eval") for number in range(20)]
    assert [sites.kind(code) for code in codes] == [1] * 10 + [0] * 10
    assert len(sites._known) == 10
    assert sites.describe((id(codes[0]), 0, id(codes[-1]), 0)) == [("/home/me/step-0.py", 1, "<module>")]


def test_a_symbolic_size_stays_symbolic() -> None:
    """To ask a symbol for its value would have the compiler make code for that value alone."""
    shapes, real = ShapeEnv(), torch.ones(7, 3)
    sizes = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    with FakeTensorMode(shape_env=shapes) as mode:
        tensor = mode.from_tensor(real, symbolic_context=sizes)
        assert describe(tensor).shape == (-1, 3)
    assert not shapes.guards


# A whole step is compiled: its forward is traced, its backward and its optimizer run as they are.
COMPILED = """
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="eager")
def step():
    loss = model(t * (rank + 1)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

print([step().item() for _ in range(2)])
"""
# Functions of Python that the compiler traces, and methods of C++ that it cannot: it leaves the compiled code for them.
COMPILED_CALLS = """
import warnings
import torch._dynamo.utils

@torch.compile(backend="eager")
def exchange(x):
    work = dist.broadcast(x * 2, 0, async_op=True)
    work.wait()
    return x + 1

@torch.compile(backend="eager")
def gather(x):
    objects = [None] * size
    dist.all_gather_object(objects, rank)
    return x + len(objects)

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for call in (exchange, gather):
        for _ in range(3):
            try:
                print(call(t).tolist())
            except Exception as error:
                print(type(error).__name__)
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
ours = [str(each.message) for each in warned if "rollcall" in str(each.message) or "time." in str(each.message)]
assert not ours, ours
"""


def test_torch_compile_meets_what_it_meets_without_recording(runner: Runner) -> None:
    """The same results, the same errors, as many graphs, and no warning that comes from the recorder."""
    plain, recorded = (run_recorded(runner, HEAD + COMPILED_CALLS, is_recorded=each) for each in (False, True))
    assert [rank.out for rank in recorded] == [rank.out for rank in plain]


def test_torch_compile_does_not_trace_the_recorder(runner: Runner) -> None:
    """The same results as without, and no warning of a function that cannot be traced."""
    plain, recorded = (run_recorded(runner, HEAD + COMPILED + LAST, is_recorded=each) for each in (False, True))
    assert [rank.out for rank in recorded] == [rank.out for rank in plain]
    assert not any("does not know how to trace" in rank.err for rank in recorded), recorded
    for rank in load(runner.latest().resolve()).ranks.values():
        assert sum(op.is_bucket for op in rank.ops) == 2

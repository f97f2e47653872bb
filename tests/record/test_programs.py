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
from rollcall.record import sites
from rollcall.record.own_file import OwnFile
from rollcall.record.tensors import describe
from tests.record.recorded import HEAD, run_recorded
from tests.rollcall_command import Runner

# What can be read only once is the program's to read.
GENERATORS = """
def shown(*tensors): print(*(tensor.tolist() for tensor in tensors))

pair = dist.new_group(each for each in range(size))
dist.all_reduce(t, group=pair)
dist.group.WORLD.allreduce(each for each in [t]).wait()
received = torch.empty(4)
dist.all_to_all_single(received, t, (2 for _ in range(size)), (2 for _ in range(size)))
dist._broadcast_coalesced(dist.group.WORLD, (each for each in [t]), 1024, 1)
dist._broadcast_coalesced(process_group=dist.group.WORLD, tensors=[t], buffer_size=1024, src=1)
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
refused(dist._broadcast_coalesced)
refused(torch.nn.parallel.DistributedDataParallel)
refused(torch.nn.parallel.DistributedDataParallel, 3)
refused(torch.ops._c10d_functional.all_reduce, t, "sum", "no group")
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
LAST = "dist.all_reduce(t)\n"


@pytest.mark.parametrize("body", [GENERATORS, WRONG_CALLS + PICKLED], ids=["generators", "wrong calls, pickled"])
def test_the_program_gets_the_same_and_recording_goes_on(runner: Runner, body: str) -> None:
    """Generators are not used up, wrong calls are refused by those who are called, and pickle finds the functions."""
    plain, recorded = (run_recorded(runner, HEAD + body + LAST, is_recorded=each) for each in (False, True))
    assert [rank.out for rank in recorded] == [rank.out for rank in plain]
    assert all(rank.out for rank in recorded)
    for rank in load(runner.latest().resolve()).ranks.values():
        assert rank.ops[-1].op == "all_reduce"
        assert rank.ops[-1].site.line == (HEAD + body + LAST).count("\n")
        assert rank.ops[-1].completed_ns


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


def test_torch_compile_does_not_trace_the_recorder(runner: Runner) -> None:
    """The same results as without, and no warning of a function that cannot be traced."""
    plain, recorded = (run_recorded(runner, HEAD + COMPILED + LAST, is_recorded=each) for each in (False, True))
    assert [rank.out for rank in recorded] == [rank.out for rank in plain]
    assert not any("does not know how to trace" in rank.err for rank in recorded), recorded
    for rank in load(runner.latest().resolve()).ranks.values():
        assert sum(op.is_bucket for op in rank.ops) == 2

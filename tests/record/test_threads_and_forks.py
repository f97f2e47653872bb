"""Collectives from other threads, and forks in the middle of a program."""

from rollcall.explain.verdict import explain
from tests.blame import blamed
from tests.record.recorded import HEAD, ops_of, run_recorded
from tests.rollcall_command import Runner

THREADS = """\
import threading, torch, torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
rank, other = dist.get_rank(), dist.new_group([0, 1])

class Data(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, number):
        return torch.ones(2) * number

class Summed(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()
    @staticmethod
    def backward(context, gradient):
        dist.all_reduce(gradient := gradient.clone(), group=other)
        return gradient

def differentiate():
    x = torch.ones(3, requires_grad=True)
    Summed.apply(x).sum().backward()
    print("gradient", x.grad.tolist())

thread = threading.Thread(target=differentiate)
thread.start()
total = torch.ones(1)
for _ in range(50):
    dist.all_reduce(total)
    total /= 2
thread.join()
saving = checkpoint.async_save({"w": torch.ones(4)}, checkpoint_id="saved", process_group=other)
# Workers are forked while the thread that saves communicates.
print("loaded", sum(batch.sum().item() for batch in DataLoader(Data(), num_workers=2)))
saving.result()
dist.all_reduce(total)
print("total", total.tolist())
"""


def test_threads_communicate_and_loaders_fork(runner: Runner) -> None:
    """A backward in a thread, a checkpoint that is saved in one, and a loader that forks meanwhile: all goes well, the
    ops of each thread are recorded, and explain has nothing to say."""
    ran = run_recorded(runner, THREADS)
    expected = ["gradient [2.0, 2.0, 2.0]", "loaded 56.0", "total [2.0]"]
    assert [[line for line in rank.out.splitlines() if line in expected] for rank in ran] == [expected] * 2
    assert not any("recording" in rank.err for rank in ran), ran
    found = explain(runner.latest().resolve())
    assert blamed(found) == []
    assert {cost.name for cost in found.costs.by_site} >= {"script.py:20", "script.py:32"}


# The children of both ranks form a group of their own, before or while their parents use one.
CHILDREN = """
import multiprocessing, os

def work(store, number, results):
    for name in [name for name in os.environ if name.startswith("TORCHELASTIC")]:
        del os.environ[name]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    dist.all_reduce(total := torch.ones(3))
    with __import__("rollcall").phase("child"):
        dist.barrier()
    results.put(total.tolist())
    dist.destroy_process_group()

def child(store):
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=work, args=(os.path.abspath(store), int(os.environ["RANK"]), results))
    process.start()
    assert results.get() == [2.0, 2.0, 2.0]
    process.join()
    assert process.exitcode == 0
"""
HEAD_LINES = HEAD.splitlines()


def test_the_group_of_a_forked_child_is_not_its_parents(runner: Runner) -> None:
    """Nothing that it does is in the ring of its parent, which records on."""
    init = "\n".join(HEAD_LINES[1:])
    body = f"{HEAD_LINES[0]}\n{CHILDREN}\nchild('before')\n{init}\ndist.all_reduce(t)\nos.fork() or os._exit(0)\n"
    run_recorded(runner, body)
    found = explain(runner.latest().resolve())
    assert blamed(found) == []
    assert {cost.name: cost.ops for cost in found.costs.by_op} == {"all_reduce": 2}


def test_a_workers_ops_are_not_its_ranks(runner: Runner) -> None:
    """What a forked child, such as a DataLoader's worker, does is not written to its parent's ring: not by its hooks,
    and not by the recorder that it has inherited."""
    ops = ops_of(
        runner,
        "import os\n"
        "from rollcall.record import recorder, ring_format\n"
        "from rollcall.record.hooks import sink\n"
        "from rollcall.record.hooks.sink import CallArgs\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    mark = recorder.current().enter(ring_format.OP['barrier'], None, CallArgs())\n"
        "    os._exit(0 if mark < 0 and sink.current is sink.OFF else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n",
    )
    assert [op.op for op in ops[0]] == ["init"]

"""No hook can break a program: where one fails, recording ends with one line, and the program gets torch's results."""

from tests.rollcall_command import Runner

# Runs a body of plain collectives, async works, p2p, objects, DDP, functional ops and signals: once without recording,
# once to see which hooks it calls, and then once for each part of each of these hooks, which raises.
PROGRAM = """\
import os, signal, sys
from pathlib import Path
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel
from rollcall.record import recorder
from rollcall.record.hooks import patching, sink

rank, lines, called = int(os.environ["RANK"]), [], set()
patching.say = lines.append
signal.signal(signal.SIGUSR1, lambda *_: None)


def body(store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    t, received = torch.arange(4.0) + rank, torch.empty(4)
    found = [t]
    dist.all_reduce(t, group=dist.new_group([0, 1]))
    dist.all_reduce(t, async_op=True).wait()
    found += dist.all_reduce(t, async_op=True).get_future().wait()
    dist.all_gather(gathered := [torch.empty(4) for _ in range(2)], t)
    dist.broadcast(t, src=1)
    dist.barrier()
    for step in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
        step(t if step is dist.send else received, 1 - rank)
    dist.all_gather_object(objects := [None, None], {"rank": rank})
    try:
        dist.all_reduce(torch.ones(2, device="meta"))
    except Exception as error:
        found += [type(error), error.__context__]
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 4) * rank + torch.eye(4)[:2]).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    try:
        loss = model(torch.ones(2, 4)).sum()
        loss.register_hook(lambda gradient: 1 / 0)
        loss.backward()
    except ZeroDivisionError as error:
        found.append(error.__context__)
    found += [*layers.parameters(), functional.all_reduce(t, "sum", dist.group.WORLD) + 1, *gathered, received]
    os.kill(os.getpid(), signal.SIGUSR1)
    dist.destroy_process_group()
    return repr([objects, *found])


def recorded(store):
    recording = recorder.begin(Path(f"{store}-run"), rank, 2, 0)
    try:
        return body(store)
    finally:
        recording.turn_off()
        sink.use(sink.OFF)


def parts():
    return [(where, part) for where in sorted(patching.installed) for part in ("before", "after", "failed")]


def note(where, part, original):
    def noting(*args):
        called.add((where, part))
        return original(*args)
    return noting


def broken(*_):
    raise ValueError("broken")


expected = body(Path("plain").absolute())
recorded(Path("first").absolute())  # DDP's hooks come with its first module
originals = {(where, part): getattr(patching.installed[where], part) for where, part in parts()}
for (where, part), original in originals.items():
    setattr(patching.installed[where], part, note(where, part, original))
assert recorded(Path("second").absolute()) == expected
for (where, part), original in originals.items():
    setattr(patching.installed[where], part, original)
assert not lines, lines
for number, (where, part) in enumerate(sorted(called)):
    setattr(patching.installed[where], part, broken)
    patching.failures.clear()
    lines.clear()
    got = recorded(Path(f"case-{number}").absolute())
    setattr(patching.installed[where], part, originals[where, part])
    if got != expected:
        print(where, part, "changed the program:", got, expected)
    if lines != [f"recording stopped in {patching.installed[where].name}: ValueError: broken; the program continues"]:
        print(where, part, "said", lines)
print("tried", sorted({where for where, _ in called}))
"""
# What must have been tried, whatever else a version of torch has.
HOOKED = (
    "ProcessGroup.allreduce",
    "ProcessGroup.allgather",
    "ProcessGroup.send",
    "Work.wait",
    "Work.get_future",
    "torch.distributed.new_group",
    "torch.distributed.init_process_group",
    "torch.distributed.all_gather_object",
    "DistributedDataParallel.__init__",
    "DistributedDataParallel.forward",
    "torch.autograd.backward",
    "optimizer.step.pre_hook",
    "_c10d_functional.all_reduce",
    "_c10d_functional.wait_tensor",
    "os.kill",
)


def test_a_hook_that_fails_does_not_reach_the_program(runner: Runner) -> None:
    """Every part of every hook that a program passes, in turn: same results, same errors, one line."""
    runner.script(PROGRAM)
    ran = runner("run", "-n", 2, "--no-record", "script.py", timeout_s=180)
    assert ran.code == 0, ran.err
    tried = ran.out.splitlines()
    assert [line for line in tried if "tried" not in line] == []
    assert all(f"'{where}'" in tried[0] for where in HOOKED), tried[0]

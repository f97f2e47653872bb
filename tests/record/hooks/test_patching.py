"""No hook can break a program: where one fails, recording ends with one line, and the program gets torch's results."""

from ast import literal_eval

from tests.rollcall_command import Runner
from tests.said import said

# Runs a body of plain collectives, async works, p2p, objects, DDP, FSDP2, functional ops and signals: once without
# recording, once to see which hooks it calls, and then once for each part of each of these hooks, which raises.
PROGRAM = """\
import os, signal, sys
from pathlib import Path
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from rollcall.explain.rings import read_header
from rollcall.record import recorder
from rollcall.record.hooks import patching, sink

rank, lines, called = int(os.environ["RANK"]), [], set()
patching.say = lines.append
signal.signal(signal.SIGUSR1, lambda *_: None)


def body(store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    t, received = torch.arange(4.0) + rank, torch.empty(4)
    found = [t]
    pair, alone = dist.new_group([0, 1]), dist.new_group([1])
    dist.all_reduce(t, group=pair)
    dist.all_reduce(t, group=alone)  # torch warns rank 0 that it is no member
    dist.all_reduce(t, async_op=True).wait()
    found += dist.all_reduce(t, async_op=True).get_future().wait()
    dist.all_gather(gathered := [torch.empty(4) for _ in range(2)], t)
    dist.broadcast(t, src=1)
    dist.reduce(t, dst=0)
    dist.gather(t, gathered if rank == 0 else None)
    dist.scatter(received, gathered if rank == 0 else None)
    dist.reduce_scatter(received, [t, t + 1])
    dist.reduce_scatter_tensor(received, torch.arange(8.0))
    dist.all_gather_into_tensor(torch.empty(8), t)
    dist.all_to_all(gathered, [t, t + 1])
    dist.all_to_all_single(received, t)
    dist.all_reduce_coalesced([t, received])
    dist.barrier()
    dist.monitored_barrier()
    for step in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
        step(t if step is dist.send else received, 1 - rank)
    if rank == 0:
        dist.send(t, 1)
    else:
        dist.recv(received)
    dist.all_gather_object(objects := [None, None], {"rank": rank})
    dist.broadcast_object_list(objects)
    dist.scatter_object_list(scattered := [None], objects)
    dist.gather_object(scattered, objects if rank == 0 else None)
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
    sharded = torch.nn.Linear(4, 4)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (2,)))
    sharded(torch.ones(2, 4)).square().sum().backward()
    found += [sharded.weight.grad.full_tensor(), *sharded.parameters()]
    found += [*layers.parameters(), functional.all_reduce(t, "sum", dist.group.WORLD) + 1, *gathered, received]
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    dist.destroy_process_group()
    return repr([objects, *found])


def recorded(store):  # what the body returns, and why recording stopped, as the ring says
    folder = Path(f"{store}-run")
    recording = recorder.begin(folder, rank, 2, 0)
    try:
        found = body(store)
    finally:
        recording.turn_off()
        sink.use(sink.OFF)
    return found, read_header((folder / f"rings/attempt-0/rank-{rank}.ring").read_bytes()[:4096]).stopped


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
assert recorded(Path("second").absolute()) == (expected, "")
for (where, part), original in originals.items():
    setattr(patching.installed[where], part, original)
assert not lines, lines
for number, (where, part) in enumerate(sorted(called)):
    setattr(patching.installed[where], part, broken)
    patching.failures.clear()
    lines.clear()
    got, why = recorded(Path(f"case-{number}").absolute())
    setattr(patching.installed[where], part, originals[where, part])
    if got != expected:
        print(where, part, "changed the program:", got, expected)
    said = f"in {patching.installed[where].name}: ValueError: broken"
    if (why, lines) != (said, [f"recording stopped {said}; the program continues"]):
        print(where, part, "said", why, lines)
tried = {where for where, _ in called}
print("tried", sorted(tried))
print("not tried", sorted(set(patching.installed) - tried))
"""
# Hooks that this program cannot pass: gloo has no such op, or the process would end.
ELSEWHERE = {"os.abort", "os._exit"}


def test_a_hook_that_fails_does_not_reach_the_program(runner: Runner) -> None:
    """Every part of every hook, in turn: same results, same errors, one line, which the ring has, too. Whoever adds a
    hook adds a call of it above."""
    runner.script(PROGRAM)
    ran = runner("run", "-n", 2, "--no-record", "script.py", timeout_s=180)
    assert ran.code == 0, ran.err
    found = {line.partition("[")[0]: literal_eval("[" + line.partition("[")[2]) for line in said(ran.out)}
    assert set(found) == {"tried ", "not tried "}, ran.out
    assert set(found["not tried "]) <= ELSEWHERE

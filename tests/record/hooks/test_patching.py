"""No hook can break a program: where one fails, recording ends with one line, and the program gets torch's results."""

import ctypes
import operator
import signal
import sys
import threading
import traceback
import warnings
from ast import literal_eval
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rollcall.record import tensors
from rollcall.record.hooks import patching, process_group, sink, works
from tests.record.recorded import run_recorded
from tests.rollcall_command import Runner

# Each function is run without recording, with it, and then once for every part of every hook that it calls and that no
# function before it has called: that part raises.
PROGRAM = """\
import os, signal, sys
from pathlib import Path
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C import _distributed_c10d
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import init_device_mesh
from torch.distributed import device_mesh, distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from rollcall.explain.loading.rings import read_header
from rollcall.record import recorder
from rollcall.record.hooks import patching, sink

rank, lines, called, number = int(os.environ["RANK"]), [], {}, 0
patching.say = lines.append
signal.signal(signal.SIGUSR1, lambda *_: None)


def init(module=dist):
    global number
    number += 1
    where = Path(f"store-{number}").absolute()
    module.init_process_group("gloo", init_method=f"file://{where}", rank=rank, world_size=2)


def groups():
    init()
    pair, alone = dist.new_group([0, 1]), dist.new_group([1])
    dist.all_reduce(t := torch.ones(2), group=pair)
    dist.all_reduce(t, group=alone)  # torch warns rank 0 that it is no member
    dist.destroy_process_group()
    init(c10d)
    dist.all_reduce(t, group=c10d.new_group([0, 1]))
    dist.destroy_process_group()
    return [t]


def collectives():
    t, received = torch.arange(4.0) + rank, torch.empty(4)
    dist.all_reduce(t)
    dist.all_reduce(t, async_op=True).wait()
    found = [t, received, *dist.all_reduce(t, async_op=True).get_future().wait()]
    dist.all_gather(gathered := [torch.empty(4) for _ in range(2)], t)
    dist.broadcast(t, src=1)
    dist.reduce(t, dst=0)
    dist.gather(t, gathered if rank == 0 else None)
    dist.scatter(received, gathered if rank == 0 else None)
    dist.reduce_scatter(received, [t, t + 1])
    dist.reduce_scatter_tensor(received, torch.arange(8.0))
    dist.all_gather_into_tensor(wide := torch.empty(8), t)
    dist.all_to_all_single(received, t)
    dist.barrier()
    dist.monitored_barrier()
    return [*found, *gathered, wide, attempt(lambda: dist.all_reduce(torch.ones(2, device="meta")))]


def attempt(call):  # gloo and this version of torch may not have it: then the error is what must stay the same
    try:
        found = call()
        return found.wait() if isinstance(found, dist.Work) else found
    except Exception as error:
        return type(error), str(error).splitlines()[:1], error.__context__


def methods():  # that torch.distributed's functions do not call, on this version of torch
    world, t, wide, pair = dist.group.WORLD, torch.ones(4), torch.ones(8), [torch.ones(4), torch.ones(4)]
    found = [attempt(lambda: dist.all_to_all(pair, [t, t + 1]))]
    for name in OPTIONS:
        into, of = (t, wide) if "reduce" in name else (wide, t) if "gather" in name else (t, t.clone())
        sizes = ([], []) if "to" in name else ()
        options = getattr(_distributed_c10d, OPTIONS[name])()
        found += [attempt(lambda: getattr(world, name)(into, of, *sizes, options)), into]
    for name in ("allgather_coalesced", "allgather_into_tensor_coalesced", "all_gather_single_coalesced"):
        found += [attempt(lambda: getattr(world, name)([pair] if name == "allgather_coalesced" else [wide], [t])), wide]
    for name in ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"):
        found += [attempt(lambda: getattr(world, name)([t], [wide])), t]
    return [*found, attempt(lambda: world.allreduce_coalesced(pair)), pair]


OPTIONS = {
    "_allgather_base": "AllgatherOptions", "all_gather_single": "AllgatherOptions",
    "_reduce_scatter_base": "ReduceScatterOptions", "reduce_scatter_single": "ReduceScatterOptions",
    "alltoall_base": "AllToAllOptions", "all_to_all_single": "AllToAllOptions",
    "gather_single": "GatherOptions", "gather_into_tensor": "GatherOptions",
}


def handles():
    def start():
        return dist.all_reduce(torch.ones(4), async_op=True)

    found, t = [], torch.ones(4)
    for name in ("synchronize", "is_completed", "is_success", "block_current_stream"):
        work = start()
        found.append(attempt(getattr(work, name)) if name != "is_completed" else work.is_completed() in (True, False))
        work.wait()
    work = start()
    work.wait()
    found += [attempt(work.result)]
    for module in (dist, c10d, device_mesh):
        found.append(attempt(lambda: type(module.split_group(split_ranks=[[0, 1]]))))  # gloo can from torch 2.15 on
    found.append(attempt(lambda: dist.group.WORLD._start_coalescing(torch.device("cpu"))))
    found.append(attempt(lambda: dist.group.WORLD._end_coalescing(torch.device("cpu"))))
    return [*found, attempt(lambda: _distributed_c10d._SymmetricMemory.rendezvous(t))]


def messages():
    t, received = torch.arange(4.0) + rank, torch.empty(4)
    for step in (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send):
        step(t if step is dist.send else received, 1 - rank)
    if rank == 0:
        dist.send(t, 1)
    else:
        dist.recv(received)
    return [received]


def objects():
    for module in (dist, c10d):
        module.all_gather_object(found := [None, None], {"rank": rank})
        module.broadcast_object_list(found)
        module.scatter_object_list(scattered := [None], found)
        module.gather_object(scattered, found if rank == 0 else None)
    return [found, scattered]


def functionals():
    t, two, group = torch.arange(4.0) + rank, [torch.ones(2) + rank, torch.ones(4)], dist.group.WORLD
    name, ops, autograd = group.group_name, torch.ops._c10d_functional, torch.ops._c10d_functional_autograd
    found = [
        functional.all_reduce(t, "sum", group) + 1,
        functional.all_gather_tensor(t, 0, group) + 1,
        functional.reduce_scatter_tensor(t, "sum", 0, group) + 1,
        functional.all_to_all_single(t, None, None, group) + 1,
        functional.broadcast(t, 0, group) + 1,
        *(each + 1 for each in functional.all_reduce_coalesced(two, "sum", group)),
        *(each + 1 for each in functional.all_gather_into_tensor_coalesced(two, group)),
        *(each + 1 for each in functional.reduce_scatter_tensor_coalesced(two, "sum", [0, 0], group)),
    ]
    found += [
        attempt(lambda: ops.wait_tensor(ops.all_reduce_(t.clone(), "sum", name))),
        attempt(lambda: [ops.wait_tensor(each) for each in ops.all_reduce_coalesced_([t.clone()], "sum", name)]),
        attempt(lambda: ops.wait_tensor(ops.broadcast_(t.clone(), 0, name))),
        attempt(lambda: ops.wait_tensor(ops.all_gather_into_tensor_out(t, 2, name, out=torch.empty(8)))),
        attempt(lambda: ops.wait_tensor(ops.reduce_scatter_tensor_out(t, "sum", 2, name, out=torch.empty(2)))),
        attempt(lambda: ops.wait_tensor(autograd.all_to_all_single(t.clone(), [2, 2], [2, 2], name))),
        attempt(lambda: ops.wait_tensor(autograd.all_gather_into_tensor(t.clone(), 2, name))),
        attempt(lambda: ops.wait_tensor(autograd.reduce_scatter_tensor(t.clone(), "sum", 2, name))),
    ]
    words = ["isend", "irecv"], [1 - rank] * 2, [0, 0], [t.clone(), torch.zeros(4)], name
    found.append(attempt(lambda: [ops.wait_tensor(each) for each in ops.batch_p2p_ops(*words)]))
    for step in ("isend", "irecv") if rank else ("irecv", "isend"):
        found.append(attempt(lambda: ops.wait_tensor(getattr(ops, step)(torch.zeros(4), 1 - rank, 3, name))))
    return found


def data_parallel():
    torch.manual_seed(0)
    found, layers = [], torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
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
    with model.join():
        for _ in range(2 + rank):
            model(torch.ones(2, 4)).sum().backward()
    return [*found, *layers.parameters()]


def sharded():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    model(torch.ones(2, 4)).square().sum().backward()
    return [model.weight.grad.full_tensor(), *(parameter.full_tensor() for parameter in model.parameters())]


def signals():
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    return []


def recorded(section):  # what it returns, and why recording stopped, as the ring says
    global number
    number += 1
    folder = Path(f"run-{number}").absolute()
    recording = recorder.begin(folder, rank, 2, 0)
    recording.set_in_op(False)  # the hook that was broken before this one could not
    try:
        found = repr(section())
    finally:
        recording.turn_off()
        sink.use(sink.OFF)
    return found, read_header(open(folder / f"rings/attempt-0/rank-{rank}.ring", "rb").read(4096)).stopped


def parts():
    return [(where, part) for where in sorted(patching.installed) for part in ("before", "after", "failed")]


def note(where, part, original, section):
    def noting(*args):
        called.setdefault((where, part), section)
        return original(*args)
    return noting


def broken(*_):
    raise ValueError("broken")


def see(section):  # which hooks it calls; without recording and with it, it finds the same
    expected = repr(section())
    recorded(section)  # DDP's hooks come with its first module
    originals = {(where, part): getattr(patching.installed[where], part) for where, part in parts()}
    for (where, part), original in originals.items():
        setattr(patching.installed[where], part, note(where, part, original, section))
    assert recorded(section) == (expected, ""), section
    for (where, part), original in originals.items():
        setattr(patching.installed[where], part, original)
    assert not lines, lines
    return expected


def of_all_ranks(keys):  # rank 0 calls some hooks that rank 1 does not
    is_alone = not dist.is_initialized()
    if is_alone:
        init()
    dist.all_gather_object(both := [None, None], keys)
    if is_alone:
        dist.destroy_process_group()
    return sorted({*both[0], *both[1]})


def break_in_turn(section, expected):
    mine = [key for key, its in called.items() if its is section]
    for where, part in of_all_ranks(mine):
        hook = patching.installed[where]
        original = getattr(hook, part)
        setattr(hook, part, broken)
        patching.failures.clear()
        lines.clear()
        got, why = recorded(section)
        setattr(hook, part, original)
        if got != expected:
            print(where, part, "changed the program:", got, expected)
        said = f"in {hook.name}: ValueError: broken"
        stopped = (said, [f"recording stopped {said}; the program continues"], True)
        if (why, lines, patching.failures[hook.name] > 0) != (stopped if (where, part) in mine else ("", [], False)):
            print(where, part, "said", why, lines, patching.failures)
    patching.failures.clear()
    lines.clear()


break_in_turn(groups, see(groups))
init()
for section in (collectives, methods, handles, messages, objects, functionals, data_parallel, sharded, signals):
    break_in_turn(section, see(section))
tried = of_all_ranks([where for where, _ in called])
print("tried", tried)
print("not tried", sorted({*patching.installed} - {*tried}))
"""
# Hooks that this program cannot pass: gloo has no such op, or the process would end.
ELSEWHERE = {"os.abort", "os._exit"}


def test_a_hook_that_fails_does_not_reach_the_program(runner: Runner) -> None:
    """Every part of every hook, in turn: same results, same errors, one line, which the ring has, too. Whoever adds a
    hook adds a call of it above."""
    for rank in run_recorded(runner, PROGRAM, is_recorded=False):
        found = {line.partition("[")[0]: literal_eval("[" + line.partition("[")[2]) for line in rank.out.splitlines()}
        assert set(found) == {"tried ", "not tried "}, rank.out
        assert {where for where in found["not tried "] if not where.startswith("symm_mem.")} <= ELSEWHERE


class _Handler:
    def raise_timeout(self, *_: object) -> None:
        raise TimeoutError("alarm")

    __call__ = raise_timeout


def _ring_the_alarm(*_: object) -> None:
    signal.raise_signal(signal.SIGALRM)


@pytest.mark.parametrize("handler", [_Handler(), _Handler().raise_timeout, partial(_Handler.raise_timeout, None)])
@pytest.mark.parametrize("part", ["before", "after", "failed"])
def test_what_a_signal_handler_raises_in_a_hook_is_the_programs(
    handler: Callable[..., None], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alarm of the program may ring at any moment: it must not be taken for an error of the recorder."""
    monkeypatch.setattr(patching, "say", lambda line: None)
    monkeypatch.setattr(patching, "installed", {})
    monkeypatch.setattr(patching, "failures", Counter())
    parts: dict[str, Callable[..., object]] = {"before": lambda *_: 1, part: _ring_the_alarm}
    original = (lambda: 1 / 0) if part == "failed" else (lambda: "result")
    recorded = patching.wrap(original, patching.Hook("op", **parts), "here")  # type: ignore[arg-type]
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeoutError, match="alarm"):
            recorded()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert patching.failures == {"op": 1}


class _LateError(Exception):
    """A class of the program."""


def _throwing(kind: type[Exception] = _LateError) -> Callable[..., Any]:
    """What a thread of the program does to limit the time of a call: it throws an error into this one."""
    return partial(
        ctypes.pythonapi.PyThreadState_SetAsyncExc, ctypes.c_ulong(threading.get_ident()), ctypes.py_object(kind)
    )


def _interrupted(kind: type[Exception] = _LateError, module: str = "rollcall.record") -> Callable[..., None]:
    """Code of the recorder, in which the error arrives."""
    return eval("lambda *_: throw()", {"throw": _throwing(kind), "__name__": module})


def _read_an_object(*_: object) -> None:
    raise _LateError


def _fail_without_text(*_: object) -> None:
    exec("raise TimeoutError", {"__name__": "torch"})


@pytest.mark.parametrize("part", ["before", "after", "failed"])
def test_what_a_thread_throws_into_a_hook_is_the_programs(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of time must not be lost because a hook was running. What the program's code raises when a hook reads one
    of its objects is not meant for the program."""
    monkeypatch.setattr(patching, "say", lambda line: None)
    monkeypatch.setattr(patching, "installed", {})
    original = (lambda: 1 / 0) if part == "failed" else (lambda: "result")
    thrown = [_interrupted(), _interrupted(TimeoutError), _interrupted(module="namedtuple_CallArgs")]
    for body in (*thrown, _read_an_object, _fail_without_text):
        parts: dict[str, Callable[..., object]] = {"before": lambda *_: 1, part: body}
        recorded = patching.wrap(original, patching.Hook("op", **parts), "here")  # type: ignore[arg-type]
        reaches = pytest.raises((_LateError, TimeoutError)) if body in thrown else nullcontext()
        with reaches, suppress(ZeroDivisionError):
            recorded()


@pytest.mark.parametrize("read", ["version", "describe"])
def test_what_a_thread_throws_while_a_tensor_is_read_is_the_programs(
    read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor that lacks an attribute is recorded without it: that must not hide an error that is not about it."""
    for name in ("_version", "_describe"):
        monkeypatch.setattr(tensors, name, _interrupted())
    with pytest.raises(_LateError):
        getattr(tensors, read)(torch.ones(2))


def test_what_a_thread_throws_while_arguments_are_read_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments that nobody can read are torch's to refuse, and recording continues; this error is not about them."""
    monkeypatch.setattr(sink, "current", object())
    hook = process_group._op_hook("all_gather", _interrupted())
    with pytest.raises(_LateError):
        hook.before((object(),), {})


def test_what_a_thread_throws_at_the_end_of_a_handle_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python prints what a callback of a weak reference raises, and continues."""
    watched, handles = {7: "tensor"}, [dist.Work()]
    monkeypatch.setattr(sink, "current", SimpleNamespace(on_drop=lambda mark: partial(watched.pop, mark)))
    works.keep(handles[0], (7, 1))
    with pytest.raises(_LateError):
        list(map(operator.call, [_throwing(), handles.clear]))  # no code of Python between the two
    assert not watched
    assert not any(each[1] == (7, 1) for each in works.unwaited.values())


@pytest.mark.parametrize("is_compiling", [True, False])
def test_a_warning_is_of_the_line_that_calls(is_compiling: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the program's, not of the hook's: filters, and which warnings are shown once, depend on that."""
    monkeypatch.setattr(patching, "installed", {})
    monkeypatch.setattr(patching, "sought", {})

    class Owner:
        @staticmethod
        def op() -> None:
            warnings.warn("old", stacklevel=2)

    hook = patching.Hook("op", lambda *_: 1)
    monkeypatch.setattr(patching, "is_compiling", lambda: is_compiling)
    patching.install(Owner, "op", hook)
    with pytest.warns(UserWarning, match="old") as warned:
        Owner.op()
    assert (warned[0].filename, warned[0].lineno) == (__file__, sys._getframe().f_lineno - 1)


@dataclass(frozen=True)
class _FrozenError(Exception):
    """Its attributes cannot be set, as those of some libraries' errors."""


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize("is_python", [True, False])
def test_a_traceback_has_no_frame_of_the_recorder(
    is_python: bool, is_recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever launcher started the program, and whoever prints the error: it looks as if torch were called alone."""
    monkeypatch.setattr(patching, "installed", {})
    monkeypatch.setattr(patching, "sought", {})

    def op() -> None:
        raise _FrozenError

    owner = ModuleType("owner")
    owner.op = op if is_python else partial(op)  # type: ignore[attr-defined]
    patching.install(owner, "op", patching.Hook("op", lambda *_: 1 if is_recorded else None))
    try:
        owner.op()
    except _FrozenError as error:
        functions = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert functions == ["test_a_traceback_has_no_frame_of_the_recorder", "op"]

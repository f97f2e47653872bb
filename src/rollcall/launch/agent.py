"""The agent: one process per host that starts its ranks, watches them, and ends them.

Started by the launcher in an interpreter of its own; the two talk over its stdin and stdout. When the
launcher is gone, so are the ranks. The engine is torch elastic's agent (attempts, restarts, rank
assignment); here it gets our rendezvous and our way of starting a process.
"""

import gc
import importlib
import logging
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rollcall.errors import RollcallError, UsageError
from rollcall.launch import names, preload, rank, supervise, title
from rollcall.launch.forkserver import ForkServers
from rollcall.launch.messages import Message, Note, Order, Refused, Stop, Wire
from rollcall.launch.plan import Plan
from rollcall.launch.safety import folder_of, why_not_to_fork

if TYPE_CHECKING:
    from rollcall.launch.elastic import HostAgent

# How long ranks may take to end once the launcher is gone: the whole tree is to be away in 3 s.
_ORPHANED_GRACE_S = 1.0
_MANY_RANKS = 17  # so many at once are too much for some name servers
_RANKS_PER_SERVER = 8
_MOST_SERVERS = 4


def main() -> NoReturn:
    supervise.become_subreaper()
    wire = _take_stdio()
    chose_threads = _import_torch()
    order = wire.receive()
    if not isinstance(order, Order):
        os._exit(2)  # the launcher has found that there is nothing to run
    plan = Plan.from_dict(order.plan)
    if chose_threads and plan.slots == 1:
        del os.environ["OMP_NUM_THREADS"]  # a rank alone may have all cores
    try:
        code = _serve(wire, order, plan)
    except RollcallError as error:
        wire.send(Refused(str(error), error.exit_code))
        code = error.exit_code
    from rollcall.launch import family

    family.end_all(0)
    # Not sys.exit: tearing torch down takes a third of a second, and nothing is left to save.
    os._exit(code)


def _import_torch() -> bool:
    """Before we know what to run: whatever it is, it needs torch.

    With the collector off, since nothing of it is garbage. And with one thread per rank, as torchrun has it,
    or every rank takes every core: the libraries read the variable when they are loaded. Returns whether the
    number of threads was ours to choose.
    """
    chose_threads = "OMP_NUM_THREADS" not in os.environ
    if chose_threads:
        os.environ["OMP_NUM_THREADS"] = "1"
    gc.disable()
    import torch.distributed  # noqa: F401

    return chose_threads


def _take_stdio() -> Wire:
    """Keep stdin and stdout for the launcher alone: a stray print must not fall into the frames."""
    reader, writer = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return Wire(open(reader, "rb"), open(writer, "wb"))


def _serve(wire: Wire, order: Order, plan: Plan) -> int:
    if plan.start == "warm":
        _import_once(plan)
        if reason := why_not_to_fork(plan):
            wire.send(Note(f"{reason}: ranks start as fresh interpreters"))
            plan = replace(plan, start="fresh")
        elif plan.slots >= _MANY_RANKS or names.are_slow():
            names.have_torch_give_up()
    count = min(_MOST_SERVERS, os.cpu_count() or 1, 1 + plan.slots // _RANKS_PER_SERVER)
    title.find()
    private = (*wire.filenos(), order.stdin_fd)
    servers = ForkServers.fork(count, rank.become, private)
    servers.prepare(plan.slots)
    # Only now: it starts threads, and a rank does not need it.
    from rollcall.launch.elastic import HostAgent

    _hush("torch.distributed.elastic")
    agent = HostAgent(plan, Path(order.folder), servers, wire, order.stdin_fd)
    threading.Thread(target=_listen, args=(wire, agent), name="launcher", daemon=True).start()
    return agent.serve()


def _hush(package: str) -> None:
    """Leave the telling to us. Elastic gives each of its loggers a level of its own."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(package):
            logging.getLogger(name).setLevel(logging.ERROR)


def _import_once(plan: Plan) -> None:
    """What every rank would import sooner or later: of torch, and of the user's modules."""
    for name in preload.of_torch(plan):
        importlib.import_module(name)
    first = str(folder_of(plan.program, plan.cwd))
    sys.path.insert(0, first)  # the user's modules are found where the program would find them
    for name in plan.preload:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"--preload {name} cannot be imported ({error}): check the name") from error
    sys.path.remove(first)


def _listen(wire: Wire, agent: "HostAgent") -> None:
    """Do what the launcher says. Its silence for good means that it was killed: then nothing may stay."""
    message: Message | None
    while (message := wire.receive()) is not None:
        if isinstance(message, Stop):
            agent.stop(message.signal, message.now)
    from rollcall.launch import family

    family.end_all(_ORPHANED_GRACE_S)
    os._exit(1)

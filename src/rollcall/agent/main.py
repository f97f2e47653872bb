"""The agent: one process per host that starts its ranks, watches them, and ends them.

On this machine alone the launcher starts it (`main`); on a host among several its keeper forks it
(`follow`). The launcher talks to it over a pipe; when the launcher is gone, so are the ranks. The engine
is torch elastic's agent (attempts, restarts, rank assignment); here it gets our rendezvous and our way
of starting a process.
"""

import functools
import importlib
import logging
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rollcall.agent.fast_import import begin, preload
from rollcall.agent.heartbeat import Ear
from rollcall.compat import torch_dns
from rollcall.errors import RollcallError, UsageError
from rollcall.linux import prctl, process_title
from rollcall.protocol.messages import (
    Loaded,
    Look,
    Message,
    Note,
    Order,
    Ready,
    Refused,
    Stacks,
    Stop,
    Wire,
    take_stdio,
)
from rollcall.protocol.plan import Plan
from rollcall.worker import main as worker_main
from rollcall.worker.fork_safety import folder_of, why_not_to_fork
from rollcall.worker.fork_server import ForkServers

if TYPE_CHECKING:
    from rollcall.agent.worker_group import HostAgent

# Runs this host's part to its end, once ranks can be forked; the exit code says only whether all was well here.
Then = Callable[[Plan, Order, ForkServers, Wire], int]
_MANY_RANKS = 17  # so many at once are too much for some name servers
_RANKS_PER_SERVER = 8
_MOST_SERVERS = 4


def main() -> NoReturn:
    """On the launcher's own machine: it may order something else than a run, or nothing."""
    prctl.become_subreaper()
    prctl.ignore_stop_signals()
    wire = Wire.on(*take_stdio())
    wire.send(Loaded())
    chose_threads = begin.choose_threads()
    begin.import_torch()  # whatever we are to run, it needs torch
    order = wire.receive()
    if not isinstance(order, Order):
        os._exit(2)  # the launcher has found that there is nothing to run
    _obey(wire, order, chose_threads, _alone)


def follow(link: socket.socket, wire_in: int, wire_out: int, keeper: int) -> NoReturn:
    """On a host among several: forked by its keeper, which answers the launcher until torch is imported."""
    prctl.become_subreaper()
    begin.begin()
    chose_threads = begin.choose_threads()
    begin.import_torch()
    from rollcall.agent.supervisor import receive_order

    handed = receive_order(link)
    link.close()
    if handed is None:
        os._exit(1)
    order, listener_fds = handed
    wire = Wire.on(wire_in, wire_out)
    _obey(wire, order, chose_threads, functools.partial(_guided, keeper, listener_fds), tuple(listener_fds))


def _obey(wire: Wire, order: Order, chose_threads: bool, then: Then, private: tuple[int, ...] = ()) -> NoReturn:
    os.environ.update(order.env)
    plan = Plan.from_dict(order.plan)
    if chose_threads and plan.slots == 1:
        del os.environ["OMP_NUM_THREADS"]  # a rank alone may have all cores
    try:
        code = _serve(wire, order, plan, then, private)
    except RollcallError as error:
        wire.send(Refused(str(error), error.exit_code))
        code = error.exit_code
    from rollcall.linux import process_tree

    process_tree.end_all(0)
    # Not sys.exit: tearing torch down takes a third of a second, and nothing is left to save.
    os._exit(code)


def _serve(wire: Wire, order: Order, plan: Plan, then: Then, private: tuple[int, ...]) -> int:
    is_among_others = order.stdin_fd < 0
    if plan.start == "warm":
        _import_once(plan)
        if reason := why_not_to_fork(plan):
            wire.send(Note(f"{reason}: ranks start as fresh interpreters"))
            plan = replace(plan, start="fresh")
    forks_many = plan.start == "warm" and plan.slots >= _MANY_RANKS
    if is_among_others or forks_many or (plan.start == "warm" and torch_dns.are_slow()):
        torch_dns.have_torch_give_up()  # among hosts, those whose addresses have no names are common
    count = min(_MOST_SERVERS, os.cpu_count() or 1, 1 + plan.slots // _RANKS_PER_SERVER)
    process_title.find()
    inherited = () if is_among_others else (order.stdin_fd,)
    servers = ForkServers.fork(count, worker_main.become, (*wire.filenos(), *inherited, *private))
    servers.prepare(plan.slots)
    return then(plan, order, servers, wire)


def _alone(plan: Plan, order: Order, servers: ForkServers, wire: Wire) -> int:
    """This host by itself; or among others that were started by hand, which agree among each other."""
    # Only now: it starts threads, and a rank does not need it.
    from rollcall.agent.rendezvous_store import RollCall
    from rollcall.agent.worker_group import HostAgent
    from rollcall.coordinator.run_folder import RunHere

    _hush("torch.distributed.elastic")
    meeting = RollCall(
        nnodes=plan.nnodes,
        node_rank=plan.node_rank,
        slots=plan.slots,
        addr=plan.master_addr,
        port=plan.master_port,
        run_id=plan.run_id,
        timeout_s=plan.join_timeout_s,
        first_attempt=plan.first_attempt,
        tell=lambda text: wire.send(Note(text)),
    )
    agent = HostAgent(meeting, plan, RunHere(Path(order.folder)), servers, wire, order.stdin_fd)
    ear = Ear(wire, lambda message: _heed(agent, message))
    ear.listen()
    return agent.serve()


def _guided(keeper: int, listener_fds: list[int], plan: Plan, order: Order, servers: ForkServers, wire: Wire) -> int:
    """Among others that the launcher leads."""
    from rollcall.agent.rendezvous_led import Guided, GuidedAgent
    from rollcall.coordinator.run_folder import RunHere

    _hush("torch.distributed.elastic")
    here = RunHere.of(plan, Path(order.folder))
    meeting = Guided(wire, listener_fds)
    agent = GuidedAgent(meeting, plan, here, servers, wire, os.open(os.devnull, os.O_RDONLY))

    def heed(message: Message) -> None:
        _heed(agent, message)
        meeting.hear(message)

    ear = Ear(wire, heed)
    ear.listen()
    ear.watch(keeper)
    wire.send(Ready(here.shared))
    try:
        return agent.serve()
    finally:
        here.remove()


def _heed(agent: "HostAgent", message: Message) -> None:
    if isinstance(message, Stop):
        agent.stop(message.signal, message.now)
    elif isinstance(message, Stacks):
        agent.show_where_they_are(message.others)
    elif isinstance(message, Look):
        agent.show_what_is_new(message.attempt)


def _hush(package: str) -> None:
    """Leave the telling to us. Elastic gives each of its loggers a level of its own."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(package):
            logging.getLogger(name).setLevel(logging.ERROR)


def _import_once(plan: Plan) -> None:
    """What every rank would import sooner or later: of torch, and of the user's modules."""
    for name in preload.of_torch(plan):
        importlib.import_module(name)
    if plan.record:
        importlib.import_module("rollcall.record.recorder").prepare()
    first = str(folder_of(plan.program, plan.cwd))
    sys.path.insert(0, first)  # the user's modules are found where the program would find them
    for name in plan.preload:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"--preload {name} cannot be imported ({error}): check the name") from error
    sys.path.remove(first)

"""The agent: one process per host that starts its ranks, watches them, and ends them.

Started by the launcher as `python -u -m rollcall.launch.agent`; the two talk over its stdin and stdout.
When the launcher is gone, so are the ranks. The engine is torch elastic's agent (attempts, restarts,
rank assignment); here it gets our rendezvous and our way of starting a process.
"""

import gc
import importlib
import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rollcall.errors import RollcallError, UsageError
from rollcall.launch import preload, rank, supervise
from rollcall.launch.forkserver import ForkServer
from rollcall.launch.messages import Message, Order, Refused, Stop, Wire
from rollcall.launch.plan import Plan

if TYPE_CHECKING:
    from rollcall.launch.elastic import HostAgent

# How long ranks may take to end once the launcher is gone: the whole tree is to be away in 3 s.
_ORPHANED_GRACE_S = 1.0


def main() -> NoReturn:
    supervise.become_subreaper()
    wire = _take_stdio()
    order = wire.receive()
    if not isinstance(order, Order):
        sys.exit("rollcall: the agent is started by `rollcall run`, not by hand")
    plan = Plan.from_dict(order.plan)
    try:
        code = _serve(wire, order, plan)
    except RollcallError as error:
        wire.send(Refused(str(error), error.exit_code))
        code = error.exit_code
    supervise.end_descendants(0)
    # Not sys.exit: tearing torch down takes a third of a second, and nothing is left to save.
    os._exit(code)


def _take_stdio() -> Wire:
    """Keep stdin and stdout for the launcher alone: a stray print must not fall into the frames."""
    reader, writer = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return Wire(open(reader, "rb"), open(writer, "wb"))


def _serve(wire: Wire, order: Order, plan: Plan) -> int:
    _import(preload.modules(plan) if plan.start == "warm" else ())
    server = ForkServer.fork(rank.become, close_fds=(*wire.filenos(), order.stdin_fd))
    if plan.start == "fresh":
        _import(("torch",))
    # Only now: the server must be forked off a process with one thread, and imports of torch elastic
    # beyond what a rank needs stay out of the ranks.
    from rollcall.launch.elastic import HostAgent

    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)  # we say it ourselves
    agent = HostAgent(plan, Path(order.folder), server, wire, order.stdin_fd)
    threading.Thread(target=_listen, args=(wire, agent), name="launcher", daemon=True).start()
    return agent.serve()


def _import(modules: tuple[str, ...]) -> None:
    """Import with the collector off: nothing of it is garbage, and looking takes a tenth of the time."""
    gc.disable()
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"--preload {name}: {error}; check the name") from error


def _listen(wire: Wire, agent: "HostAgent") -> None:
    """Do what the launcher says. Its silence for good means that it was killed: then nothing may stay."""
    message: Message | None
    while (message := wire.receive()) is not None:
        if isinstance(message, Stop):
            agent.stop(message.signal, message.now)
    supervise.end_descendants(_ORPHANED_GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main()

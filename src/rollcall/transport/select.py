"""Chooses the transport that starts the agents of a plan on its hosts."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from rollcall.protocol.plan import Plan
from rollcall.transport import local, pipe
from rollcall.transport.connection import StartAgents


@contextlib.contextmanager
def opened(plan: Plan, purpose: str, tell: Callable[[str], None]) -> Iterator[tuple[Plan, StartAgents]]:
    """The plan with the addresses that are known only now, and what starts its agents while the context is open.

    Each transport is imported where it is used: a run needs one of them.
    """
    match plan.transport.kind:
        case "local":
            with contextlib.contextmanager(local.opened)() as start:
                yield plan, start
        case "virtual":
            with _virtual(plan, purpose, tell) as (known, start):
                yield known, start
        case "slurm":
            from rollcall.transport import slurm

            with slurm.opened(plan, purpose) as start:
                yield plan, start
        case "pbs":
            from rollcall.transport import pbs

            with pbs.opened(plan, purpose) as start:
                yield plan, start
        case "ssh":
            from rollcall.transport import ssh

            if plan.transport.sync:
                from rollcall.transport import rsync

                rsync.copy(plan, tell)
            yield plan, pipe.starter(plan, lambda host: ssh.command(host, plan, purpose))


@contextlib.contextmanager
def _virtual(plan: Plan, purpose: str, tell: Callable[[str], None]) -> Iterator[tuple[Plan, StartAgents]]:
    from rollcall.transport import supervisor_command
    from rollcall.transport.virtual import hosts as virtual_hosts

    transport = plan.transport
    with virtual_hosts.hosts(len(plan.hosts), transport.link, transport.delay, tell) as found:
        enter = {host.name: host.enter for host in found}
        pairs = zip(plan.hosts, found, strict=True)
        hosts = tuple(dataclasses.replace(host, address=each.address) for host, each in pairs)
        known = dataclasses.replace(plan, hosts=hosts)
        command = supervisor_command.make(transport.python, purpose)
        yield known, pipe.starter(known, lambda host: [*enter[host.name], *command])

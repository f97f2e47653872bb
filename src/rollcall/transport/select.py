"""From a plan to agents on its hosts: which way leads there, and how a line comes from it."""

import contextlib
import dataclasses
import json
import subprocess
from collections.abc import Callable, Iterator

from rollcall.coordinator.agents import Line, Member, Start
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan
from rollcall.transport import local, ssh

Words = Callable[[Host], list[str]]


@contextlib.contextmanager
def opened(plan: Plan, purpose: str, tell: Callable[[str], None]) -> Iterator[tuple[Plan, Start]]:
    """The plan with what is known only now (addresses), and a way to start its agents, for as long as it is open."""
    assert plan.reach is not None
    match plan.reach.way:
        case "virtual":
            with _virtual(plan, purpose, tell) as (known, words):
                yield known, by_pipe(known, words)
        case "slurm":
            from rollcall.transport import slurm

            with slurm.opened(plan, purpose) as start:
                yield plan, start
        case "pbs":
            from rollcall.transport import pbs

            with pbs.opened(plan, purpose) as start:
                yield plan, start
        case "ssh":
            if plan.reach.sync:
                from rollcall.transport import rsync

                rsync.copy(plan, tell)
            yield plan, by_pipe(plan, lambda host: ssh.words(host, plan, purpose))


@contextlib.contextmanager
def _virtual(plan: Plan, purpose: str, tell: Callable[[str], None]) -> Iterator[tuple[Plan, Words]]:
    from rollcall.transport import virtual_hosts

    assert plan.reach is not None
    python = plan.reach.python
    with virtual_hosts.hosts(len(plan.hosts), plan.reach.link, plan.reach.delay, tell) as found:
        enter = {host.name: host.enter for host in found}
        pairs = zip(plan.hosts, found, strict=True)
        hosts = tuple(dataclasses.replace(host, address=each.address) for host, each in pairs)
        yield (
            dataclasses.replace(plan, hosts=hosts),
            lambda host: [*enter[host.name], *local.words(python, purpose)],
        )


def by_pipe(plan: Plan, words: Words) -> Start:
    """Each agent is at the other end of a process of ours."""
    assert plan.reach is not None
    settings = json.dumps(dict(plan.reach.env)).encode() + b"\n"

    def start(members: list[Member], connected: Callable[[Member, Line], None]) -> None:
        for member in members:
            process = subprocess.Popen(
                words(member.host),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=plan.cwd,
                start_new_session=True,  # the terminal's Ctrl-C comes to us alone, and we pass it on
            )
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(settings)
                process.stdin.flush()
            connected(member, Line(process.stdout, process.stdin, process))

    return start

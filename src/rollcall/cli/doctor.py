"""The command line of `rollcall doctor`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from rollcall.cli import host_options
from rollcall.errors import say
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan, Program, TransportKind


def doctor(
    hosts: Annotated[
        str, typer.Option(help="Hosts, reached by ssh.", metavar="a,user@b,node[01-04]", show_default=False)
    ] = "",
    hostfile: Annotated[Path | None, typer.Option(help="The same from a file, one a line.", metavar="FILE")] = None,
    virtual_hosts: Annotated[int | None, typer.Option(help="So many hosts on this machine.", metavar="N")] = None,
    link: Annotated[str | None, typer.Option(help="Speed of the virtual hosts' network.", metavar="1gbit")] = None,
    delay: Annotated[str | None, typer.Option(help="Delay of the virtual hosts' network.", metavar="2ms")] = None,
    python: Annotated[
        str, typer.Option(help="The Python on the hosts. Default: the path of this one.", metavar="PATH")
    ] = "",
    master_addr: Annotated[str | None, typer.Option(help="Try this address of the first host only.")] = None,
    master_port: Annotated[int, typer.Option(help="Try this port there. Default: a free one.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print all findings as JSON.")] = False,
) -> None:
    """Check hosts before you need them: ssh, versions, GPUs, clocks, the way to the master, speed between all pairs.

    Within a SLURM or PBS job it checks the hosts of the job; without hosts this machine alone, with a table of what
    rollcall patches in torch, gloo and Python.

    [bold]Examples[/]

      rollcall doctor --hosts alpha,beta

      rollcall doctor --virtual-hosts 3 --link 1gbit
    """
    from rollcall.cli.tables import print_findings
    from rollcall.compat import table  # here: it imports torch
    from rollcall.coordinator.doctor import examine
    from rollcall.record import hooks

    found = host_options.named(hosts, hostfile, virtual_hosts, "1", False, os.environ)
    # This machine is examined by a supervisor of its own, as any other host.
    chosen = found.hosts if found.has_named else (Host("localhost", 1),)
    kind: TransportKind = found.kind if found.has_named else "ssh"
    plan = Plan(
        program=Program("module", "rollcall"),
        hosts=chosen,
        transport=host_options.transport(kind, python=python, link=link, delay=delay),
        master_addr=master_addr,
        master_port=master_port,
        cwd=os.getcwd(),
    )
    findings = examine(plan, say)
    if found.has_named:
        print_findings(findings, [], None, as_json=json)
    else:
        hooks.install()  # into this process, which ends now: only that tells what they find
        print_findings(findings, table.rows(os.environ), hooks.places(), as_json=json)
    raise typer.Exit(1 if findings.problems else 0)

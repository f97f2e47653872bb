"""The command line of `rollcall doctor`."""

import os
from typing import Annotated

import typer

from rollcall.cli import host_options
from rollcall.cli.shared_options import AsJson, HostFile, HostNames, HostPython, LinkBandwidth, LinkDelay, VirtualHosts
from rollcall.errors import say
from rollcall.protocol.hosts import Host
from rollcall.protocol.plan import Plan, Program, TransportKind


def doctor(
    hosts: HostNames = None,
    hostfile: HostFile = None,
    virtual_hosts: VirtualHosts = None,
    link: LinkBandwidth = None,
    delay: LinkDelay = None,
    python: HostPython = "",
    master_addr: Annotated[str | None, typer.Option(help="Connect to the first host by this address only.")] = None,
    master_port: Annotated[int, typer.Option(help="Port of the first host to connect to. Default: a free one.")] = 0,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also measure computing, copying and all_reduce, and check GPUs with NVML.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Check hosts before a run: ssh, versions, GPUs, clocks, connection to the master, speed between each two hosts.

    In a SLURM or PBS job it checks the hosts of the job.
    Without hosts it checks this machine, and prints a table of what rollcall patches in torch, gloo and Python.

    [bold]Examples[/]

      rollcall doctor --hosts alpha,beta

      rollcall doctor --hosts 'node[01-16]' --deep

      rollcall doctor --virtual-hosts 3 --link 1gbit
    """
    from rollcall.cli.tables import print_findings
    from rollcall.compat import patches  # here: it imports torch
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
    findings = examine(plan, say, is_deep=deep)
    if found.has_named:
        print_findings(findings, [], None, as_json=json)
    else:
        hooks.install()  # into this process, which ends now: only that tells what they find
        print_findings(findings, patches.rows(os.environ), hooks.places(), as_json=json)
    raise typer.Exit(1 if findings.problems else 0)

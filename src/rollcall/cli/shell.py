"""`rollcall shell`: from its options to a prompt on ranks."""

import importlib.util
import sys
from typing import Annotated

import typer

from rollcall.cli.shared_options import HangAfter, HostFile, HostNames, HostPython, Preload, VirtualHosts
from rollcall.errors import UsageError
from rollcall.units import plural


def shell(
    ranks: Annotated[
        int | None,
        typer.Option("-n", "--nproc-per-node", help="Ranks, per host if there are several. Default: 2."),
    ] = None,
    hosts: HostNames = None,
    hostfile: HostFile = None,
    virtual_hosts: VirtualHosts = None,
    python: HostPython = "",
    hang_after: HangAfter = 10.0,
    preload: Preload = None,
) -> None:
    """Open a prompt on several ranks: each line runs on all of them, with a process group ready.

    If ranks print the same, it is shown once. If a line hangs, rollcall explains why.
    Ctrl-C cancels the line. Ctrl-D ends the shell.

    [bold]Examples[/]

      rollcall shell -n 4

      rollcall shell -n 2 --virtual-hosts 2

      rollcall shell --hosts alpha:2,beta:2
    """
    from rollcall.shell.options import ShellOptions  # here, and below: only the shell needs them

    options = ShellOptions(
        ranks, hang_after, tuple(preload or ()), virtual_hosts, hosts or "", str(hostfile or ""), python
    )
    options.check()
    if importlib.util.find_spec("IPython") is None:
        raise UsageError("rollcall shell needs IPython: pip install 'torch-rollcall[shell]'")
    if not sys.stdin.isatty():
        raise UsageError("rollcall shell needs a terminal: for a script, use `rollcall run`")
    from rollcall.shell import ranks as shell_ranks

    with shell_ranks.started(options) as (found, folder):
        from rollcall.shell import prompt

        print(prompt.BANNER.format(ranks=plural(len(found.all), "rank")))
        raise typer.Exit(prompt.open_prompt(found, folder))

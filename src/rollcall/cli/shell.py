"""`rollcall shell`: from its options to a prompt on ranks."""

import importlib.util
import sys
from typing import Annotated

import typer

from rollcall.cli.shared_options import HangAfter, Preload, VirtualHosts
from rollcall.errors import UsageError


def shell(
    ranks: Annotated[int, typer.Option("-n", "--nproc-per-node", help="Ranks, per host if there are several.")] = 2,
    virtual_hosts: VirtualHosts = None,
    hang_after: HangAfter = 10.0,
    preload: Preload = None,
) -> None:
    """Open a prompt on several ranks: each line runs on all of them, with a process group ready.

    Equal answers are shown once. A line that hangs is explained, and Ctrl-C takes it back. Ctrl-D ends.

    [bold]Examples[/]

      rollcall shell -n 4

      rollcall shell -n 2 --virtual-hosts 2
    """
    from rollcall.shell.options import Wanted  # here, and below: only the shell needs them

    wanted = Wanted(ranks, virtual_hosts, hang_after, tuple(preload or ()))
    world_size = wanted.world_size()
    if importlib.util.find_spec("IPython") is None:
        raise UsageError("rollcall shell needs IPython: pip install 'torch-rollcall[shell]'")
    if not sys.stdin.isatty():
        raise UsageError("rollcall shell needs a terminal: for a script, use `rollcall run`")
    from rollcall.shell import ranks as shell_ranks

    with shell_ranks.started(world_size, wanted.words()) as (found, folder):
        from rollcall.shell import prompt

        print(prompt.BANNER.format(ranks=world_size))
        raise typer.Exit(prompt.open_prompt(found, folder))

"""`rollcall shell`: from its options to a prompt on ranks."""

import importlib.util
import sys
from typing import Annotated

import typer

from rollcall.errors import UsageError

_MOST_RANKS = 64  # more would not fit a screen


def shell(
    ranks: Annotated[int, typer.Option("-n", "--nproc-per-node", help="Ranks, per host if there are several.")] = 2,
    virtual_hosts: Annotated[
        int | None, typer.Option("--virtual-hosts", help="N hosts on this machine, each with a network of its own.")
    ] = None,
    hang_after: Annotated[
        float, typer.Option("--hang-after", help="Explain when no rank has made progress for so many seconds.")
    ] = 10.0,
    preload: Annotated[
        list[str] | None, typer.Option("--preload", help="Import this module once for all ranks.")
    ] = None,
) -> None:
    """Open a prompt on several ranks: each line runs on all of them, with a process group ready.

    Equal answers are shown once. A line that hangs is explained, and Ctrl-C takes it back. Ctrl-D ends.

    [bold]Examples[/]

      rollcall shell -n 4

      rollcall shell -n 2 --virtual-hosts 2
    """
    world_size = ranks * (virtual_hosts or 1)
    if not 1 <= world_size <= _MOST_RANKS:
        raise UsageError(f"a shell on {world_size} ranks is not possible: use 1 to {_MOST_RANKS}")
    if hang_after <= 0:
        raise UsageError(f"--hang-after {hang_after:g} is not a time to wait: use seconds, such as 10")
    if importlib.util.find_spec("IPython") is None:
        raise UsageError("rollcall shell needs IPython: pip install 'torch-rollcall[shell]'")
    if not sys.stdin.isatty():
        raise UsageError("rollcall shell needs a terminal: for a script, use `rollcall run`")
    from rollcall.shell import ranks as shell_ranks  # here, and below: only the shell needs them

    words = ["-n", str(ranks), "--start", "warm", "--hang-after", str(hang_after)]
    words += ["--virtual-hosts", str(virtual_hosts)] if virtual_hosts else []
    words += [word for module in preload or () for word in ("--preload", module)]
    with shell_ranks.started(world_size, words) as (found, folder):
        from rollcall.shell import prompt

        print(prompt.BANNER.format(ranks=world_size))
        raise typer.Exit(prompt.open_prompt(found, folder))

"""`rollcall warm`: starts, shows and ends servers from which runs start faster."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from rollcall.errors import RollcallError, UsageError, say
from rollcall.units import in_seconds

IDLE_S = 30 * 60.0  # how long a server stays after its last use


def warm(
    script: Annotated[
        str | None, typer.Argument(help="Also import what this script needs of torch: for DDP, FSDP, torch.compile.")
    ] = None,
    preload: Annotated[
        list[str] | None, typer.Option("--preload", help="Import this module, too, for runs with the same option.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="Minutes after its last use until the server ends.")] = IDLE_S / 60,
    stop: Annotated[bool, typer.Option("--stop", help="End all servers. Runs continue.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Show what is ready.")] = False,
) -> None:
    """Keep torch imported, so that the next `rollcall run` starts in a fraction of a second.

    A run uses the server only where a cold start would give the same: same Python and packages, environment, limits,
    user, --preload. Otherwise it starts cold, and says why. ROLLCALL_WARM=0 starts without it; with ROLLCALL_WARM=1, a
    run leaves a server behind.

    [bold]Examples[/]

      rollcall warm

      rollcall warm train.py --minutes 120

      rollcall warm --status

      rollcall warm --stop
    """
    from rollcall.transport import warm as servers

    if minutes <= 0:
        raise UsageError(f"--minutes {minutes:g} is not a time to stay: use minutes, such as 30")
    if script is not None and not Path(script).exists():
        raise UsageError(f"there is no script {script}: check the path, or leave it out")
    if stop or status:
        _show(servers.ask_all({"ask": "stop" if stop else "status"}), "ended" if stop else "ready")
        return
    typed = {
        "preload": preload or [],
        "record": True,
        "kind": "script" if script else "module",
        "script": script or "-",
    }
    if servers.is_ready(typed):
        say("a warm server for this is ready already: `rollcall warm --status` shows it")
        return
    _wait(servers.start(typed, minutes * 60))
    say(f"ready, until {minutes:g} minutes after its last use; `rollcall warm --stop` ends it")


def _wait(reader_fd: int) -> None:
    with os.fdopen(reader_fd) as file:
        answer = file.read().strip()
    if answer != "ready":
        raise RollcallError(
            answer or "the warm server ended before it was ready: does `python -c 'import torch'` work?"
        )


def _show(servers: list[dict[str, Any]], state: str) -> None:
    if not servers:
        say("no warm server is running: `rollcall warm` starts one")
    for each in servers:
        left = f"{each['running']} running" if each["left_s"] is None else f"ends in {in_seconds(each['left_s'])}"
        facts = [
            f"{state} for {in_seconds(each['age_s'])}" if state == "ready" else state,
            f"{each['starts']} start{'s' * (each['starts'] != 1)}",
            *([left] if state == "ready" else []),
            *([f"imports {', '.join(each['preload'])}"] if each["preload"] else []),
            *([f"out of date: {each['changed']} has changed"] if each["changed"] else []),
        ]
        print(f"pid {each['pid']}  {each['python']}  {', '.join(facts)}")

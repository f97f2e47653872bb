"""`rollcall warm`: starts, shows and ends servers from which runs start faster."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from rollcall.errors import RollcallError, UsageError, say
from rollcall.units import in_seconds, plural

IDLE_S = 30 * 60.0  # how long a server stays after its last use
_FOR_CALLS = "for rollcall.spawn, pytest and rollcall lab"


def warm(
    script: Annotated[
        str | None,
        typer.Argument(
            help="Also import the parts of torch that this script uses, such as DDP, FSDP, torch.compile.",
            metavar="SCRIPT",
        ),
    ] = None,
    preload: Annotated[
        list[str] | None, typer.Option("--preload", help="Also import this module, for runs with the same --preload.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="End the server this many minutes after its last use.")] = IDLE_S / 60,
    stop: Annotated[bool, typer.Option("--stop", help="End all warm servers. Runs continue.")] = False,
    status: Annotated[bool, typer.Option("--status", help="List the warm servers.")] = False,
) -> None:
    """Start a server that has imported torch, so that the next `rollcall run` starts in a fraction of a second.

    rollcall.spawn, tests with ranks under pytest, and `rollcall lab` use the server, too.

    A run uses the server only if Python, packages, environment variables, limits, user and --preload are the same.
    Otherwise it imports torch itself, and prints what differs.
    With ROLLCALL_WARM=0, a run does not use the server.
    With ROLLCALL_WARM=1, a run starts a server for later runs when it ends.

    [bold]Examples[/]

      rollcall warm

      rollcall warm train.py --minutes 120

      rollcall warm --status

      rollcall warm --stop
    """
    from rollcall.functions import warm as calls
    from rollcall.transport import warm as runs

    if minutes <= 0:
        raise UsageError(f"--minutes {minutes:g} is not a time to stay: use minutes, such as 30")
    if script is not None and not Path(script).exists():
        raise UsageError(f"there is no script {script}: check the path, or leave it out")
    if stop or status:
        _show_all("stop" if stop else "status", "ended" if stop else "ready")
        return
    options = {
        "preload": preload or [],
        "record": True,
        "kind": "script" if script else "module",
        "script": script or "-",
    }
    has_runs, has_calls = runs.is_ready(options), calls.is_ready()
    if has_runs and has_calls:
        say("a warm server for this is ready already: `rollcall warm --status` shows it")
        return
    if not has_runs:
        _wait(runs.start(options, minutes * 60))
    if not has_calls:  # one after the other: nothing is left running if --preload is wrong
        _wait(calls.start(minutes * 60))
    say(f"ready, until {minutes:g} minutes after its last use; `rollcall warm --stop` ends it")


def _wait(reader_fd: int) -> None:
    with os.fdopen(reader_fd) as file:
        answer = file.read().strip()
    if not answer:
        raise RollcallError("the warm server ended before it was ready: does `python -c 'import torch'` work?")
    if answer != "ready":
        raise UsageError(answer)


def _show_all(ask: str, state: str) -> None:
    from rollcall.linux import warm_servers

    found = [(each, "") for each in warm_servers.ask_all(warm_servers.RUNS, {"ask": ask})]
    found += [(each, _FOR_CALLS) for each in warm_servers.ask_all(warm_servers.CALLS, {"ask": ask})]
    if not found:
        say("no warm server is running: `rollcall warm` starts one")
    for each, use in found:
        _show(each, use, state)


def _show(server: dict[str, Any], use: str, state: str) -> None:
    left = f"{server['running']} running" if server["left_s"] is None else f"ends in {in_seconds(server['left_s'])}"
    facts = [
        *([use] if use else []),
        f"{state} for {in_seconds(server['age_s'])}" if state == "ready" else state,
        f"{plural(server['starts'], 'start')}",
        *([left] if state == "ready" else []),
        *([f"imports {', '.join(server['preload'])}"] if server["preload"] else []),
        *([f"out of date: {server['changed']} has changed"] if server["changed"] else []),
    ]
    print(f"pid {server['pid']}  {server['python']}  {', '.join(facts)}")

"""Tables for the terminal."""

import os
import platform
import shlex
from importlib.metadata import version
from typing import Any

from rich.console import Console
from rich.table import Table


def print_runs(runs: list[dict[str, Any]]) -> None:
    if not runs:
        print("no runs here yet: start one with `rollcall run -n 2 SCRIPT`")
        return
    table = Table("when", "command", "ranks", "took", "outcome", box=None, pad_edge=False, header_style="bold")
    for run in runs:
        table.add_row(
            run["started"][:19].replace("T", " "),
            shlex.join(run["command"]),
            str(run["plan"]["slots"] * run["plan"]["nnodes"]),
            f"{run['seconds']:.1f} s" if "seconds" in run else "",
            _outcome(run),
        )
    # A pipe has no width of its own: lines must stay whole there.
    console = Console()
    Console(width=None if console.is_terminal else 1000).print(table)


def _outcome(run: dict[str, Any]) -> str:
    if run["outcome"] == "running" and not os.path.exists(f"/proc/{run['launcher_pid']}"):
        return "killed"
    attempts = len(run["attempts"])
    code = f" (exit code {run['exit_code']})" if run.get("exit_code") else ""
    return f"{run['outcome']}{code}" + (f", {attempts} attempts" if attempts > 1 else "")


def print_versions() -> None:
    print(f"rollcall {version('rollcall')}, torch {version('torch')}, Python {platform.python_version()}")

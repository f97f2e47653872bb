"""Tables for the terminal."""

import dataclasses
import json
import platform
import shlex
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rollcall import __version__
from rollcall.runs import is_over
from rollcall.units import in_bits, in_bytes, in_flop, in_seconds

if TYPE_CHECKING:
    from rollcall.compat.patches import PatchState
    from rollcall.coordinator.doctor import Findings
    from rollcall.record.hooks import Places


def print_runs(runs: list[dict[str, Any]]) -> None:
    if not runs:
        print("no runs here yet: start one with `rollcall run -n 2 SCRIPT`")
        return
    table = _table("when", "command", "ranks", "took", "outcome")
    for run in runs:
        table.add_row(
            run["started"][:19].replace("T", " "),
            shlex.join(run["command"]),
            str(_ranks(run)),
            in_seconds(run["seconds"]) if "seconds" in run else "",
            _outcome(run),
        )
    _console().print(table)


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False, header_style="bold")


def _console() -> Console:
    """A pipe has no width. With a large one, lines are not broken there."""
    console = Console()
    return console if console.is_terminal else Console(width=1000)


def _ranks(run: dict[str, Any]) -> int | str:
    """Returns the number of ranks: of the plan, or of the recording if another launcher has started them."""
    plan = run.get("plan") or {}
    if not plan:
        return next((int(attempt["world_size"]) for attempt in run["attempts"] if "world_size" in attempt), "")
    return sum(int(host["slots"]) for host in plan.get("hosts", ())) or int(plan["slots"]) * int(plan["nnodes"])


def _outcome(run: dict[str, Any]) -> str:
    if "outcome" not in run:
        return f"recorded by {run.get('recorded_by', 'rollcall.init')}"
    if run["outcome"] == "running" and is_over(run):
        return "killed"
    attempts = len(run["attempts"])
    code = f" (exit code {run['exit_code']})" if run.get("exit_code") else ""
    return f"{run['outcome']}{code}" + (f", {attempts} attempts" if attempts > 1 else "")


def print_versions() -> None:
    print(f"rollcall {__version__}, torch {version('torch')}, Python {platform.python_version()}")


def print_findings(findings: "Findings", patches: list["PatchState"], places: "Places | None", as_json: bool) -> None:
    """What the doctor found: tables of hosts, pairs, devices, GPUs and patches, and what to do."""
    if as_json:
        compat = [dataclasses.asdict(row) for row in patches]
        hooks = dataclasses.asdict(places) if places else {}
        print(json.dumps({**dataclasses.asdict(findings), "compat": compat, "hooks": hooks}, indent=2))
        return
    console = _console()
    hosts = _table("host", "reached", "Python", "torch", "GPUs", "clock", "address", "interface")
    for c in findings.checks:
        mark = "[red]✗[/]" if c.problem else "[green]✓[/]"
        hosts.add_row(c.host, f"{mark} {c.stage}", c.python, c.torch, c.gpus, c.clock, c.address, c.interface)
    console.print(hosts, "")
    if findings.ways:
        pairs = _table("from", "to", "round trip", "throughput")
        for way in findings.ways:
            speed = ("—", way.error) if way.error else (in_seconds(way.round_trip_s), in_bits(way.bytes_per_s))
            pairs.add_row(way.start, way.end, *speed)
        console.print(pairs, "")
    for made in (_devices(findings.health), _gpus(findings.health)):
        if made.row_count:
            console.print(made, "")
    if patches:
        console.print(_patches(patches), "")
    if places:
        mark = "[red]✗[/]" if places.missing else "[green]✓[/]"
        console.print(f"{mark} hooks of the recorder: {escape(str(places))}", soft_wrap=True)
    for problem in findings.problems:
        console.print(f"[red]✗[/] {escape(problem)}", soft_wrap=True)
    if not findings.problems:
        console.print(f"[green]✓[/] {len(findings.checks)} of {len(findings.checks)} hosts are well")


def _devices(health: dict[str, dict[str, Any]]) -> Table:
    """How fast the devices of each host compute and copy, by a deep check."""
    table = _table("host", "device", "matrix multiplication", "memory copy", "all_reduce on the host")
    for host, facts in health.items():
        reduced = facts.get("all_reduce_bytes_per_s")
        for device, flop_per_s in facts.get("flop_per_s", {}).items():
            copied = facts.get("copied_bytes_per_s", {}).get(device)
            speeds = (f"{in_bytes(each)}/s" if each else "—" for each in (copied, reduced))
            table.add_row(host, device, in_flop(flop_per_s), *speeds)
    return table


def _gpus(health: dict[str, dict[str, Any]]) -> Table:
    """What NVML says of the GPUs of each host."""
    table = _table(
        "host", "GPU", "model", "temperature", "clock", "power limit", "ECC errors", "throttled", "processes"
    )
    for host, facts in health.items():
        for gpu in facts.get("gpus", ()):
            table.add_row(
                host,
                str(gpu["index"]),
                gpu.get("name", "—"),
                _of(gpu, "temperature_c", "slowdown_c", "°C"),
                _of(gpu, "sm_mhz", "most_sm_mhz", "MHz"),
                _of(gpu, "power_limit_w", "default_power_limit_w", "W"),
                str(gpu.get("uncorrected_errors", "—")),
                gpu.get("lost") or ", ".join(gpu.get("throttled", ())) or "no",
                str(gpu.get("processes", "—")),
            )
    return table


def _of(gpu: dict[str, Any], now: str, most: str, unit: str) -> str:
    """`38 of 89 °C`; a driver may leave out one of the two numbers."""
    words = [f"{gpu[name]:g}" for name in (now, most) if name in gpu]
    return f"{' of '.join(words)} {unit}" if words else "—"


def _patches(rows: list["PatchState"]) -> Table:
    """Lists the patches; for one that does not work here, also what is lost."""
    table = _table("patch", "purpose", "here")
    for row in rows:
        mark = "[green]✓[/]" if row.state == "ok" else "–" if row.state == "off" else "[red]✗[/]"
        lost = "" if row.state == "ok" else f" — {row.lost_without}"
        table.add_row(row.name, row.purpose, f"{mark} {escape(row.state + lost)}")
    return table

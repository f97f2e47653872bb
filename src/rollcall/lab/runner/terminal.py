"""Verdicts on a terminal, and as JSON."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from rollcall.lab import NAMES
from rollcall.lab.experiment import Experiment, Results, Settings, Table, Verdict, question_of


def list_experiments(as_json: bool) -> None:
    questions = {name: question_of(name) for name in NAMES}
    if as_json:
        print(json.dumps([{"name": name, "question": question} for name, question in questions.items()], indent=2))
        return
    console = _console()
    table = RichTable("experiment", "question", box=None, pad_edge=False, header_style="bold")
    for name, question in questions.items():
        table.add_row(f"[bold]{name}[/]", escape(question))
    console.print(table)
    console.print("\n[dim]rollcall lab NAME runs one, rollcall lab all runs them all; each file is a lesson[/]")


def say_verdict(
    experiment: Experiment, settings: Settings, verdict: Verdict, picture: Path | None, console: Console | None = None
) -> None:
    console = console or _console()
    hosts = f" on {settings.virtual_hosts} virtual hosts" if settings.virtual_hosts else ""
    ranks = f"{settings.world_size} rank{'s' * (settings.world_size > 1)}"
    trials = f"{settings.trials} trial{'s' * (settings.trials > 1)}"
    console.print(f"\n[bold]{experiment.name}[/]  {escape(experiment.question)}  [dim]{ranks}{hosts}, {trials}[/]")
    for table in verdict.tables:
        console.print()
        console.print(_table(table))
    console.print(f"\n[bold]verdict:[/] {escape(verdict.sentence)}")
    _say_claims(console, verdict)
    if picture is not None:
        console.print(f"[dim]picture: {escape(str(picture))}[/]")


def say_sentence(verdict: Verdict) -> None:
    """The verdict alone, where the ranks have said the rest."""
    console = _console()
    console.print(f"[bold]verdict:[/] {escape(verdict.sentence)}")
    _say_claims(console, verdict)


def _say_claims(console: Console, verdict: Verdict) -> None:
    for claim in verdict.claims:
        mark = "[green]✓[/]" if claim.holds else "[red]✗[/]" if claim.is_invariant else "[yellow]–[/]"
        seen = "" if claim.holds else " (violated)" if claim.is_invariant else " (not seen this time)"
        console.print(f"  {mark} {escape(claim.text)}{seen}")


def to_json(
    experiment: Experiment, settings: Settings, verdict: Verdict, results: Results, picture: Path | None
) -> dict[str, Any]:
    return {
        "experiment": experiment.name,
        "question": experiment.question,
        "ranks": settings.world_size,
        "trials": settings.trials,
        "virtual_hosts": settings.virtual_hosts,
        **verdict.to_dict(),
        "picture": str(picture) if picture else None,
        "results": results,
    }


def _table(table: Table) -> RichTable:
    drawn = RichTable(
        *table.columns, title=table.title, title_justify="left", title_style="", box=None, pad_edge=False,
        header_style="bold",
    )  # fmt: skip
    for row in table.rows:
        drawn.add_row(*map(escape, row))
    return drawn


def _console() -> Console:
    """A pipe has no width of its own: lines stay whole there."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=1000)

"""What a terminal shows: the list of experiments, a progress bar, verdicts."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from rollcall.lab import NAMES
from rollcall.lab.experiment import Experiment, LabSettings, Verdict, VerdictTable, question_of
from rollcall.units import plural


def list_experiments(as_json: bool) -> None:
    questions = {name: question_of(name) for name in NAMES}
    if as_json:
        print(json.dumps([{"name": name, "question": question} for name, question in questions.items()], indent=2))
        return
    console = _console()
    table = Table("experiment", "question", box=None, pad_edge=False)
    for name, question in questions.items():
        table.add_row(f"[bold]{name}[/]", escape(question))
    console.print(table)
    console.print("\n[dim]rollcall lab NAME runs one, rollcall lab all runs them all[/]")


@contextmanager
def progress_bar(title: str, worlds: int) -> Iterator[Callable[[float], None]]:
    """A bar while the block runs. Yields a function that takes the number of worlds that are done."""
    columns = (
        SpinnerColumn(),
        TextColumn("[bold]{task.description}[/]"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=not sys.stdout.isatty(), highlight=False, soft_wrap=True)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=worlds)
        yield lambda done: bar.update(task, completed=done)


def print_verdict(experiment: Experiment, settings: LabSettings, verdict: Verdict, picture: Path | None) -> None:
    console = _console()
    hosts = f" on {settings.virtual_hosts} virtual hosts" if settings.virtual_hosts else ""
    size = f"{plural(settings.world_size, 'rank')}{hosts}, {plural(settings.trials, 'trial')}"
    console.print(f"\n[bold]{experiment.name}[/]  {escape(experiment.question)}  [dim]{size}[/]")
    for table in verdict.tables:
        console.print()
        console.print(_table(table))
    console.print()
    print_sentence(verdict)
    if picture is not None:
        console.print(f"[dim]picture: {escape(str(picture))}[/]")


def print_sentence(verdict: Verdict) -> None:
    """The verdict without its tables."""
    console = _console()
    console.print(f"[bold]verdict:[/] {escape(verdict.sentence)}")
    for claim in verdict.claims:
        mark = "[green]✓[/]" if claim.holds else "[red]✗[/]" if claim.is_invariant else "[yellow]–[/]"
        remark = "" if claim.holds else " (violated)" if claim.is_invariant else " (not seen this time)"
        console.print(f"  {mark} {escape(claim.text)}{remark}")


def _table(table: VerdictTable) -> Table:
    drawn = Table(*table.columns, title=table.title, title_justify="left", title_style="", box=None, pad_edge=False)
    for row in table.rows:
        drawn.add_row(*map(escape, row))
    return drawn


def _console() -> Console:
    """A pipe has no width: with a large one, lines are not broken there."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=1000)

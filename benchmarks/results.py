"""What a section hands back: tables to show, goals met or not, and the raw figures."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
_progress = Console(stderr=True, width=None if sys.stderr.isatty() else 200, highlight=False)


@dataclass(frozen=True)
class Goal:
    """One line of the summary; `met` is None where there is no figure to judge by."""

    what: str
    wanted: str
    found: str
    met: bool | None


@dataclass(frozen=True)
class Result:
    tables: list[Table]
    goals: list[Goal]
    figures: dict[str, Any] = field(default_factory=dict)


def table(title: str, *columns: str) -> Table:
    made = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number else "left")
    return made


def progress(text: str) -> None:
    """A word to whoever waits, apart from the results."""
    _progress.print(f"  {text}", style="dim", markup=False)


def how_it_failed(exit_code: int | None) -> str:
    return "took too long and was ended" if exit_code is None else f"ended with exit code {exit_code}"


def middle(values: Sequence[float | None]) -> float | None:
    """The median of what was measured, if anything was."""
    measured = [value for value in values if value is not None]
    return median(measured) if measured else None


def ratio(slow: float | None, fast: float | None) -> float | None:
    return slow / fast if slow and fast else None


def seconds(value: float | None) -> str:
    return "failed" if value is None else f"{value:.3f} s" if value < 1 else f"{value:.2f} s"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ×" if value < 100 else f"{value:.0f} ×"


def at_least(value: float | None, goal: float) -> bool | None:
    return None if value is None else value >= goal

"""What a section returns: tables, goals that are met or not, and the raw numbers."""

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
    """One line of the summary; `met` is None if nothing was measured."""

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
    """Print a message on stderr."""
    _progress.print(f"  {text}", style="dim", markup=False)


def how_it_failed(exit_code: int | None) -> str:
    return "took too long and was ended" if exit_code is None else f"ended with exit code {exit_code}"


def median_or_none(values: Sequence[float | None]) -> float | None:
    """The median, or None if there are no values."""
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

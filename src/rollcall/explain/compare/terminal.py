"""Prints what `rollcall compare` found."""

import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rollcall.explain.compare.comparison import (
    RunComparison,
    calls_in_words,
    compare,
    in_words,
    runs_in_words,
    times_in_words,
    to_json,
)
from rollcall.explain.compare.times import TimeDifference
from rollcall.units import in_seconds

_MOST = 8  # lines of each part; --json has all


def show(first: Path, second: Path, as_json: bool) -> RunComparison:
    found = compare(first, second)
    if as_json:
        print(json.dumps(to_json(found), indent=2))
        return found
    console = Console(highlight=False, soft_wrap=True)
    for place, line in zip(("first: ", "second:"), runs_in_words(found), strict=True):
        console.print(f"[bold]{place}[/] {escape(line)}")
    for problem in dict.fromkeys((*found.first.problems, *found.second.problems)):
        console.print(f"  [yellow]{escape(problem)}[/]")
    console.print(f"\n[bold]calls:[/] {escape(calls_in_words(found))}")
    if found.calls.left_out:
        console.print(f"  {found.calls.left_out:,} calls that one of the runs no longer has are left out")
    console.print(f"\n[bold]time:[/] {escape(times_in_words(found))}\n")
    console.print(_table("where the time went, per rank", found.times.whole))
    _show_differences(console, found)
    return found


def _show_differences(console: Console, found: RunComparison) -> None:
    heads = {"line": "by line", "op": "by op", "rank": "by rank", "phase": "by phase"}
    shown = {by: [each for each in found.times.notable if each.by == by][:_MOST] for by in heads}
    if not any(shown.values()):
        return
    console.print("\nbeyond noise, the largest first:")
    for by, differences in shown.items():
        if differences:
            console.print(_table(heads[by], differences))


def _table(title: str, differences: "list[TimeDifference] | tuple[TimeDifference, ...]") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title)
    for column in ("first", "second", "difference", "noise", "ops"):
        table.add_column(column, justify="right")
    for each in differences:
        name = each.sort if each.by == "run" else in_words(each)
        ops = f"{each.first_ops:,.0f}"
        if round(each.first_ops) != round(each.second_ops):
            ops += f" → {each.second_ops:,.0f}"
        table.add_row(
            escape(name),
            in_seconds(each.first_s),
            in_seconds(each.second_s),
            f"{'+' if each.seconds >= 0 else '−'}{in_seconds(abs(each.seconds))}",
            f"± {in_seconds(each.noise_s)}",
            ops,
        )
    return table

"""Prints what `rollcall explain` found."""

import json
import sys
from collections.abc import Collection
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rollcall.errors import UsageError
from rollcall.explain.costs import Costs
from rollcall.explain.verdict import Explanation, explain, in_words, to_json
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.units import in_bytes, in_seconds


def show(folder: Path, attempt: int | None, as_json: bool) -> None:
    explanation = explain(folder, attempt)
    if as_json:
        print(json.dumps(to_json(explanation), indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    run = explanation.run
    recorded = f"{len(run.ranks)} of {run.world_size} ranks recorded"
    console.print(f"[bold]{escape(run.name)}[/], attempt {run.attempt}: {explanation.outcome}, {recorded}")
    if run.is_rehearsed:
        console.print(f"  {REHEARSED}")
    for problem in run.problems:
        console.print(f"  [yellow]{escape(problem)}[/]")
    if explanation.verdict is None:
        console.print(f"\n{nothing_found(explanation)}")
    for finding in explanation.findings:
        word = "[bold]verdict:[/]" if finding is explanation.verdict else "advice:" if finding.is_advice else "also:"
        console.print(f"\n{word} {escape(in_words(finding))}")
    _show_deaths(console, explanation)
    _show_waits(console, explanation)
    _show_costs(console, explanation)


def nothing_found(explanation: Explanation) -> str:
    if explanation.run.cut_ns:
        return "no finding so far: the run goes on, and the calls of all ranks match"
    return "no finding: the calls of all ranks match"


def _show_deaths(console: Console, explanation: Explanation) -> None:
    deaths = explanation.deaths
    if len(deaths) > 1:
        words = [f"rank {deaths[0].rank} ({deaths[0].how})"]
        words += [f"rank {each.rank} ({each.how}, {in_seconds(each.after_s)} later)" for each in deaths[1:]]
        more = f" and {len(words) - _FEW} more" if len(words) > _FEW else ""
        console.print(f"\nwho died, and who died because of it: {escape(', '.join(words[:_FEW]))}{more}")


REHEARSED = "this run was rehearsed: its ranks ran alone, so nothing is known of times and waits"
_FEW = 6  # lines of a table, names in a sentence; --json has all


def _show_waits(console: Console, explanation: Explanation) -> None:
    waits = explanation.waits
    if not waits.calls:
        return
    table = _table("rank", "last in", "made others wait", "waited itself", "of the run", "run without its delays")
    worst_first = sorted(explanation.run.ranks, key=lambda rank: -waits.caused_s[rank])
    for rank in sorted(worst_first[:_MOST_RANKS]):
        table.add_row(
            str(rank),
            f"{waits.last_in[rank]} of {waits.calls} calls",
            in_seconds(waits.caused_s[rank]),
            in_seconds(waits.suffered_s[rank]),
            f"{waits.share(waits.suffered_s[rank]):.0%}",
            f"{waits.share(waits.saved_s[rank]):.0%} shorter",
        )
    error_s = explanation.run.clock_error_ns / 1e9
    give_or_take = f", give or take {in_seconds(error_s)} between hosts" if error_s else ""
    console.print(f"\nwho waited for whom, in {in_seconds(waits.run_s)} from the first op to the last{give_or_take}:")
    console.print(table)
    if len(worst_first) > _MOST_RANKS:
        console.print(f"the {_MOST_RANKS} ranks that others waited for most; --json has all {len(worst_first)}")


_MOST_RANKS = 16


def _show_costs(console: Console, explanation: Explanation) -> None:
    costs = explanation.costs
    if not costs.by_op:
        return
    if explanation.run.is_rehearsed:
        _show_sizes(console, costs)
        return
    table = _table("communication", "ops", "bytes", "blocked", "hidden behind computing")
    for kind, found in (("", costs.by_op), ("at ", costs.by_site), ("in phase ", costs.by_phase)):
        for cost in found[:_FEW]:
            table.add_row(
                kind + escape(cost.name),
                f"{cost.ops:,}",
                in_bytes(cost.size_bytes),
                in_seconds(cost.blocked_s),
                in_seconds(cost.hidden_s),
            )
    console.print(f"\nwhere communication takes its time, all ranks together; {costs.overlap:.0%} of it is hidden:")
    console.print(table)


def _show_sizes(console: Console, costs: Costs) -> None:
    """Of a rehearsal, which has no times."""
    table = _table("communication", "ops", "bytes")
    for kind, found in (("", costs.by_op), ("at ", costs.by_site)):
        for cost in found[:_FEW]:
            table.add_row(kind + escape(cost.name), f"{cost.ops:,}", in_bytes(cost.size_bytes))
    console.print("\ncommunication, all ranks together:")
    console.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


# What the launcher of `rollcall run` says by itself.
SAID_BY_LAUNCHER = ("rank-failed", "rank-killed", "stopped-rank")


def tell(folder: Path, hangs_for_s: float | None = None, said: Collection[str] = SAID_BY_LAUNCHER) -> bool:
    """Print the verdict on a run that failed, unless its kind was `said` before; or on a run that hangs, with the
    stacks of its ranks. Returns whether a run that seems to hang only waits for a rank that computes."""
    try:
        explanation = explain(folder, is_hung=hangs_for_s is not None)
    except UsageError:  # nothing was recorded
        return False
    verdict = explanation.verdict
    if hangs_for_s is None and (verdict is None or verdict.kind in said):
        return False
    computing = verdict.evidence.get("computing", []) if verdict else []
    lines = [f"rollcall: verdict: {in_words(verdict)}"] if verdict else []
    if hangs_for_s is not None:
        what = "a rank is busy" if computing else "no rank has made progress"
        why = [] if verdict else [f"rollcall: why is not known: {each}" for each in explanation.run.problems]
        lines = [f"rollcall: {what} for {hangs_for_s:g} s, and others wait", *lines, *why]
        lines += ["rollcall: where the ranks are:", *_stacks(explanation), *_left_alone(computing)]
    print("\n".join(lines), file=sys.stderr, flush=True)
    return bool(computing)


def _left_alone(computing: list[int]) -> list[str]:
    use = "uses its processor" if len(computing) == 1 else "use their processors"
    return [f"rollcall: {ranks_in_words(computing)} {use}, so the run is left alone"] if computing else []


def _stacks(explanation: Explanation) -> list[str]:
    """The user's lines of each stack, innermost first; ranks with the same stack share a line."""
    by_stack: dict[str, list[int]] = {}
    for rank in explanation.run.ranks.values():
        words = " ← ".join(f"{site} in {site.function}" for site in rank.own_stack)
        words = words or f"not known{': ' * bool(rank.no_stack)}{rank.no_stack}"
        by_stack.setdefault(words, []).append(rank.number)
    return [f"  {ranks_in_words(numbers)}: {words}" for words, numbers in by_stack.items()]

"""Prints what `rollcall explain` found."""

import gc
import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rollcall.errors import UsageError
from rollcall.explain.verdict import Death, Explanation, as_dict, explain, in_one_line, in_words, to_json
from rollcall.linux.malloc import keep_freed_memory
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.units import in_bytes, in_seconds


def show(folder: Path, attempt: int | None, as_json: bool) -> None:
    # This process does nothing else, and ends soon: a large run is read block by block, into objects that it keeps.
    keep_freed_memory()
    gc.disable()
    explanation = explain(folder, attempt)
    if as_json:
        print(json.dumps(to_json(explanation), indent=2))
        return
    print_explanation(Console(highlight=False, soft_wrap=True), explanation)


def print_explanation(console: Console, explanation: Explanation) -> None:
    """Prints one screen: the findings, then as many rows of the tables as fit, the rows that matter most first."""
    lines = [*_heading(explanation), *_findings(explanation), *_deaths(explanation)]
    for line in lines:
        console.print(line)
    used = sum(map(partial(_height, console), lines))
    waits, costs = waits_table(explanation), costs_table(explanation)
    rows = max(_SCREEN - used - sum(table.height for table in (waits, costs)), _LEAST_ROWS)
    # Half of the rows are for each table; what one of them leaves is the other's.
    for_costs = max(rows // 2, rows - len(waits.rows))
    for_costs = min(for_costs, len(costs.rows), max(rows - min(len(waits.rows), _LEAST_ROWS // 2), 0))
    waits.show(console, rows - for_costs)
    costs.show(console, for_costs)


_SCREEN = 23  # lines of a terminal; the prompt has one
_LEAST_ROWS = 4  # of a table: with fewer it would not show how its lines differ


def _height(console: Console, line: str) -> int:
    """How many lines of the terminal it takes."""
    return sum(max(1, -(-cell_len(part) // console.width)) for part in Text.from_markup(line).plain.split("\n"))


def _heading(explanation: Explanation) -> Iterator[str]:
    run = explanation.run
    recorded = f"{len(run.ranks)} of {run.world_size} ranks recorded"
    yield f"[bold]{escape(run.name)}[/], attempt {run.attempt}: {explanation.outcome}, {recorded}"
    if run.is_rehearsed:
        yield f"  {REHEARSED}"
    for problem in run.problems[:_FEW_PROBLEMS]:
        yield f"  [yellow]{escape(problem)}[/]"
    if len(run.problems) > _FEW_PROBLEMS:
        yield f"  [yellow]and {len(run.problems) - _FEW_PROBLEMS} more such; --json has all[/]"


REHEARSED = "this run was rehearsed: its ranks ran alone, so nothing is known of times and waits"
_FEW_PROBLEMS = 3  # lines of them leave most of a screen to the findings


def _findings(explanation: Explanation) -> Iterator[str]:
    """The verdict with its lines; the others in one line each."""
    if explanation.verdict is None:
        yield f"\n{nothing_found(explanation)}"
    others = [finding for finding in explanation.findings if finding is not explanation.verdict]
    if explanation.verdict is not None:
        yield f"\n[bold]verdict:[/] {escape(in_words(explanation.verdict))}"
    for finding in others[:_FEW_FINDINGS]:
        yield f"{'advice' if finding.is_advice else 'also'}: {escape(in_one_line(finding))}"
    if len(others) > _FEW_FINDINGS:
        kinds = Counter(finding.kind for finding in others[_FEW_FINDINGS:])
        yield f"and {', '.join(f'{count} × {kind}' for kind, count in kinds.most_common(_FEW))}; --json has all"


_FEW_FINDINGS = 2  # besides the verdict: they, too, may take several lines each


def nothing_found(explanation: Explanation) -> str:
    if not explanation.run.ranks:
        return "no finding: no rank was recorded, so there are no calls to compare"
    if explanation.run.cut_ns:
        return "no finding so far: the run continues, and the calls of all ranks match"
    if explanation.deaths:
        first = explanation.deaths[0]
        died = f"rank {first.rank} died first ({first.how})"
        return f"no finding: {died}, and the calls that were recorded do not tell why; look at its log"
    if not len(explanation.run.table):
        return "no finding: no call was recorded"
    who = "all ranks" if len(explanation.run.ranks) >= explanation.run.world_size else "the ranks that are here"
    return f"no finding: the calls of {who} match"


def _deaths(explanation: Explanation) -> Iterator[str]:
    """Returns one line: who died by itself, then who died because of it; ranks that died alike together."""
    deaths = explanation.deaths
    if len(deaths) < 2:
        return
    alike: dict[tuple[bool, str], list[Death]] = {}
    for death in deaths:
        alike.setdefault((death is deaths[0], death.how), []).append(death)
    words = [_died(found) for found in alike.values()]
    more = f" and {len(words) - _FEW} more ways" if len(words) > _FEW else ""
    yield f"\nwho died, and who died because of it: {escape(', '.join(words[:_FEW]))}{more}"


def _died(deaths: list[Death]) -> str:
    """Ranks that died in the same way."""
    after_s = [death.after_s for death in deaths]
    later = f", {in_seconds(min(after_s))} later" if max(after_s) else ""
    if in_seconds(max(after_s)) != in_seconds(min(after_s)):
        later = f", {in_seconds(min(after_s))} to {in_seconds(max(after_s))} later"
    return f"{ranks_in_words(death.rank for death in deaths)} ({deaths[0].how}{later})"


_FEW = 6  # ways to die, kinds of findings in a sentence; --json has all


@dataclass(frozen=True)
class TableRows:
    """A table of which some rows are shown: those that come first. The terminal and pages draw the same."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    order: Callable[[tuple[str, ...]], Any] | None = None  # of the rows that are shown
    left_out: str = ""  # what is said of the others

    @property
    def height(self) -> int:
        """Counts all lines but the rows: an empty line, the title, the names of the columns, and what is said of
        other rows."""
        return 3 + bool(self.left_out) if self.rows else 0

    def shown(self, most: int) -> list[tuple[str, ...]]:
        kept = self.rows[: max(most, 0)]
        return sorted(kept, key=self.order) if self.order else list(kept)

    def show(self, console: Console, most: int) -> None:
        kept = self.shown(most)
        if not kept:
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in kept:
            table.add_row(*map(escape, row))
        console.print(f"\n{self.title}")
        console.print(table)
        if self.left_out and len(kept) < len(self.rows):
            console.print(self.left_out.format(shown=len(kept), rows=len(self.rows)))


def waits_table(explanation: Explanation) -> TableRows:
    """The ranks that others waited for most; without those for which nobody waited, if there are others."""
    waits = explanation.waits
    ranks = sorted(explanation.run.ranks, key=lambda rank: -waits.caused_s[rank]) if waits.calls else []
    ranks = [rank for rank in ranks if waits.caused_s[rank] > 0 or len(ranks) <= _MOST_RANKS][:_MOST_RANKS]
    rows = [
        (
            str(rank),
            f"{waits.last_in[rank]} of {waits.calls} calls",
            in_seconds(waits.caused_s[rank]),
            in_seconds(waits.suffered_s[rank]),
            f"{waits.share(waits.suffered_s[rank]):.0%}",
            f"{waits.share(waits.saved_s[rank]):.0%} shorter",
        )
        for rank in ranks
    ]
    error_s = explanation.run.clock_error_ns / 1e9
    give_or_take = f", give or take {in_seconds(error_s)} between hosts" if error_s else ""
    return TableRows(
        f"who waited for whom, in {in_seconds(waits.run_s)} from the first op to the last{give_or_take}:",
        ("rank", "last in", "made others wait", "waited itself", "of the run", "run without its delays"),
        rows,
        lambda row: int(row[0]),
        f"the {{shown}} ranks that others waited for most; --json has all {len(explanation.run.ranks)}",
    )


_MOST_RANKS = 16  # rows of a table that still fit on a screen with the rest


def costs_table(explanation: Explanation) -> TableRows:
    """Ops, lines and phases in turn, the costliest of each first."""
    costs = explanation.costs
    sorts = (("", costs.by_op), ("at ", costs.by_site), ("in phase ", costs.by_phase))
    named = [[(kind + cost.name, cost) for cost in found] for kind, found in sorts]
    order = {name: place for place, (name, _) in enumerate(itertools.chain(*named))}
    in_turn = [each for turn in itertools.zip_longest(*named) for each in turn if each is not None]
    rows = [
        (name, f"{cost.ops:,}", in_bytes(cost.size_bytes), in_seconds(cost.blocked_s), in_seconds(cost.hidden_s))
        for name, cost in in_turn
    ]
    if explanation.run.is_rehearsed:
        sizes = [row[:3] for row in rows]
        return TableRows("communication, all ranks together:", ("communication", "ops", "bytes"), sizes)
    return TableRows(
        f"where communication takes its time, all ranks together; {costs.overlap:.0%} of it is hidden:",
        ("communication", "ops", "bytes", "blocked", "hidden behind computing"),
        rows,
        lambda row: order[row[0]],
    )


# What the launcher of `rollcall run` says by itself.
SAID_BY_LAUNCHER = ("rank-failed", "rank-killed", "stopped-rank")


@dataclass(frozen=True)
class PrintedVerdict:
    """What was found in a run: its verdict, as --json has it; of a hang without one, where the ranks are."""

    verdict: dict[str, Any] = field(default_factory=dict)
    is_left_alone: bool = False  # it only waits for a rank that computes, saves or compiles


def tell(
    folder: Path,
    hangs_for_s: float | None = None,
    said: Collection[str] = SAID_BY_LAUNCHER,
    is_told_before: bool = False,
) -> PrintedVerdict:
    """Print the verdict on a run that failed, unless its kind was `said` before; or on a run that hangs, with the
    stacks of its ranks. That a run is left alone is not printed again if `is_told_before`."""
    try:
        explanation = explain(folder, is_hung=hangs_for_s is not None)
    except UsageError:  # nothing was recorded
        return PrintedVerdict()
    verdict = explanation.verdict
    if hangs_for_s is None:
        if verdict is not None and verdict.kind not in said:
            _print([f"rollcall: verdict: {in_words(verdict)}"])
        return PrintedVerdict(as_dict(verdict) if verdict else {})
    left_alone = _left_alone(explanation)
    if not left_alone or not is_told_before:
        _print([*_hang(explanation, hangs_for_s, left_alone), *left_alone])
    unknown = {"kind": "unknown", "message": "why is not known", "where": _stacks(explanation)}
    return PrintedVerdict(as_dict(verdict) if verdict else unknown, bool(left_alone))


def _print(lines: list[str]) -> None:
    print("\n".join(lines), file=sys.stderr, flush=True)


def _hang(explanation: Explanation, hangs_for_s: float, left_alone: list[str]) -> list[str]:
    """The verdict on a run that hangs, and where its ranks are."""
    verdict = explanation.verdict
    what, others = "no rank has made progress", "some of them wait"
    if left_alone:
        what, others = "a rank is busy", "others wait"
    elif explanation.run.is_asleep:
        others = "all wait for locks"
    why = [f"rollcall: why is not known: {each}" for each in explanation.run.problems]
    return [
        f"rollcall: {what} for {hangs_for_s:g} s, and {others}",
        *([f"rollcall: verdict: {in_words(verdict)}"] if verdict else why),
        "rollcall: where the ranks are:",
        *_stacks(explanation),
    ]


def _left_alone(explanation: Explanation) -> list[str]:
    """Why a run that seems to hang must be left alone; empty if it hangs."""
    evidence = explanation.verdict.evidence if explanation.verdict else {}
    words = {
        "computing": ("uses its processor", "use their processors"),
        "saving": ("is in a save or a compile", "are in a save or a compile"),
    }
    return [
        f"rollcall: {ranks_in_words(ranks)} {words[why][len(ranks) > 1]}, so the run is left alone"
        for why in words
        if (ranks := evidence.get(why, []))
    ]


def _stacks(explanation: Explanation) -> list[str]:
    """The user's lines of each stack, innermost first; ranks with the same stack share a line."""
    by_stack: dict[str, list[int]] = {}
    for rank in explanation.run.ranks.values():
        words = " ← ".join(f"{site} in {site.function}" for site in rank.own_stack)
        words = words or f"not known{': ' * bool(rank.no_stack)}{rank.no_stack}"
        by_stack.setdefault(words, []).append(rank.number)
    most_first = sorted(by_stack.items(), key=lambda item: -len(item[1]))
    told = by_stack.items() if len(by_stack) <= _MOST_STACKS else most_first[:_MOST_STACKS]
    more = [f"  and {len(by_stack) - _MOST_STACKS} other places"] if len(by_stack) > _MOST_STACKS else []
    return [f"  {ranks_in_words(numbers)}: {words}" for words, numbers in told] + more


_MOST_STACKS = 12  # different ones: half a screen, below the verdict

"""`rollcall stacks`: asks the run's launcher for the stacks of its ranks, and prints them."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollcall.cli.shared_options import AsJson, RunName
from rollcall.errors import UsageError

if TYPE_CHECKING:
    from rollcall.live.stacks import Answer


def stacks(
    run: RunName = None,
    rank: Annotated[str, typer.Option(help="Only these ranks: 2, or 0,2-3.", metavar="RANKS")] = "all",
    as_json: AsJson = False,
) -> None:
    """Show the stack of every rank of a running job, on every host. Ranks with equal stacks are shown together.

    The run continues, and no signal is sent to its ranks. Frames of C++ are shown where py-spy is installed.

    [bold]Examples[/]

      rollcall stacks

      rollcall stacks 2026-11-15T10-02-11-train --rank 2
    """
    from rollcall.live import stacks as live_stacks
    from rollcall.protocol.rank_ranges import read_ranks
    from rollcall.runs import find_run

    wanted = read_ranks("--rank", rank)
    answer = live_stacks.chosen(_ask(find_run(run)), wanted)
    print(json.dumps(answer.to_dict()) if as_json else live_stacks.in_words(answer))


def _ask(folder: Path) -> "Answer":
    """Asks the run's launcher. Other launchers do not answer, so ranks of this host are then found by their rings."""
    from rollcall.live import questions
    from rollcall.live import stacks as live_stacks

    facts = questions.check_runs(folder)
    return live_stacks.ask(folder) if facts.get("plan") else _collect_here(folder)


def _collect_here(folder: Path) -> "Answer":
    from rollcall.agent.monitoring import stack_collection, stack_requests
    from rollcall.live.stacks import Answer
    from rollcall.runs import recorded_attempts

    attempt = max(recorded_attempts(folder), default=0)
    rings = stack_requests.find_rings(folder, attempt)
    pids = {int(name[1]): pid for pid, ring in rings.items() if (name := re.fullmatch(r"rank-(\d+)", ring.stem))}
    if not pids:
        raise UsageError(f"no rank of {folder.name} that is recorded runs on this host: ask on the host where it runs")
    found = stack_collection.collect(pids, {pid: rings[pid] for pid in pids.values()})
    return Answer(attempt, found, tuple(sorted(pids)), {})

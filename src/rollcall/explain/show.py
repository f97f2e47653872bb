"""`rollcall explain`, for the terminal."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rollcall.errors import UsageError
from rollcall.explain.verdict import Explanation, explain, in_words, to_json


def show(folder: Path, attempt: int | None, as_json: bool) -> None:
    explanation = explain(folder, attempt)
    if as_json:
        print(json.dumps(to_json(explanation), indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    run = explanation.run
    ranks = f"{len(run.ranks)} of {run.world_size} ranks recorded"
    console.print(f"[bold]{escape(run.name)}[/], attempt {run.attempt}: {explanation.outcome}, {ranks}")
    for problem in run.problems:
        console.print(f"  [yellow]{escape(problem)}[/]")
    if explanation.verdict is None:
        console.print("\nno finding: all calls of all ranks fit together")
    else:
        console.print(f"\n[bold]verdict:[/] {escape(in_words(explanation.verdict))}")
        for finding in explanation.findings[1:]:
            console.print(f"\nalso: {escape(in_words(finding))}")
    _show_waits(console, explanation)


def _show_waits(console: Console, explanation: Explanation) -> None:
    counted = explanation.waits
    if not counted.calls:
        return
    table = Table("rank", "last in", "made others wait", "waited itself", box=None, pad_edge=False, header_style="bold")
    for rank, caused_s in counted.caused_s.items():
        table.add_row(
            str(rank),
            f"{counted.last[rank]} of {counted.calls} calls",
            f"{caused_s:.3f} s",
            f"{counted.suffered_s[rank]:.3f} s",
        )
    console.print(f"\nwho waited for whom, in {counted.run_s:.2f} s from the first op to the last:")
    console.print(table)


def find_run(name: str | None, home: Path) -> Path:
    """The folder of a run: by its name, by a path, or the newest."""
    candidates = [Path(name), home / name] if name else [home / "latest"]
    for path in candidates:
        if (path / "run.json").exists() or (path / "rings").exists():
            return path.resolve()
    if name is None:
        raise UsageError("no run here yet: start one with `rollcall run -n 2 SCRIPT`, or name the folder of one")
    known = sorted(path.name for path in home.glob("*") if path.is_dir())[-3:]
    hint = f"; the newest here are {', '.join(known)}" if known else ""
    raise UsageError(f"there is no run {name}: `rollcall runs` lists those of this folder{hint}")


def tell(folder: Path) -> None:
    """After a run that ended badly: the verdict, where it says more than the report has said."""
    try:
        verdict = explain(folder).verdict
    except UsageError:  # nothing was recorded
        return
    if verdict is not None and verdict.kind not in ("rank-failed", "rank-killed", "stopped-rank"):
        print(f"rollcall: verdict: {in_words(verdict)}", file=sys.stderr, flush=True)

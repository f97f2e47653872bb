"""`rollcall demo`: the main job on this machine alone, each act on real ranks. The acts are plain scripts."""

import os
from pathlib import Path

from rich.console import Console

from rollcall.launch.plan import Plan, Program
from rollcall.launch.start import run

_RANKS = 4
# Script, title, and what to import once for all ranks.
_ACTS = (
    ("roll_call.py", "The roll call: four ranks say who they are", ()),
    ("barrier.py", "A barrier, with and without: whose result comes before whose message?", ()),
    ("training.py", "A small training: DDP on the handwritten digits of scikit-learn", ("sklearn.datasets",)),
)


def show() -> int:
    """Run every act as `rollcall run` would; the first that fails ends the demo with its exit code."""
    console = Console(highlight=False)
    for script, title, preload in _ACTS:
        path = Path(__file__).parent / script
        extra = "".join(f" --preload {module}" for module in preload)
        console.print(
            f"\n[bold]{title}[/]\n[dim]rollcall run -n {_RANKS}{extra} {os.path.relpath(path)}[/]", soft_wrap=True
        )
        program = Program("script", str(path))
        plan = Plan(program, slots=_RANKS, preload=preload, run_id=f"demo-{path.stem}", cwd=os.getcwd())
        if code := run(plan):
            return code
    console.print("\nAll three acts ran on real ranks: [bold]rollcall runs[/] lists them.")
    return 0

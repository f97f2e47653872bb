"""`rollcall record -- COMMAND`: records the ranks that another launcher starts."""

from pathlib import Path
from typing import Annotated

import typer

from rollcall.cli.shared_options import RingMb


def record(
    command: Annotated[list[str], typer.Argument(help="Any command that starts ranks.", metavar="-- COMMAND…")],
    out: Annotated[
        Path | None, typer.Option(help="Record into this new folder. Default: a run in .rollcall/runs.", metavar="DIR")
    ] = None,
    ring_mb: RingMb = None,
) -> None:
    """Record the ranks that another launcher starts, for `rollcall explain`, `report` and `watch`.

    Every Python process that COMMAND starts is recorded from its first init_process_group on.
    rollcall must be installed in its environment. The program is not changed.
    In a job script, ROLLCALL_RECORD=DIR does the same without this command.

    [bold]Examples[/]

      rollcall record -- torchrun --nproc-per-node 4 train.py

      rollcall record -- mpirun -n 4 python train.py

      rollcall record --out recording -- srun python train.py
    """
    from rollcall.coordinator import other_launcher  # here: `rollcall --help` does not need it

    raise typer.Exit(other_launcher.run(command, out, ring_mb))

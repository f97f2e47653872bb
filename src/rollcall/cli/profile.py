"""`rollcall profile`: from its options to torch.profiler in ranks of a running job."""

from typing import Annotated

import typer

from rollcall.cli.shared_options import RunName
from rollcall.errors import UsageError
from rollcall.units import plural


def profile(
    run: RunName = None,
    rank: Annotated[str, typer.Option(help="The ranks: 3, or 0,2-3, or all.", metavar="RANKS")] = "0",
    steps: Annotated[int, typer.Option(help="Stop after N steps.", metavar="N")] = 5,
    seconds: Annotated[
        float, typer.Option(help="Stop after N seconds, even before the last step.", metavar="N")
    ] = 60.0,
) -> None:
    """Profile ranks of a running job with torch.profiler. The program is not changed, and continues.

    `rollcall export --perfetto FILE` then shows kernels and functions beside the ops, on the same time axis.

    [bold]Examples[/]

      rollcall profile --rank 3 --steps 5

      rollcall profile 2026-11-15T10-02-11-train --rank all
    """
    from rollcall.live.profile import profile as profile_ranks
    from rollcall.protocol.rank_ranges import ranks_in_words, read_ranks
    from rollcall.runs import find_run

    if steps < 1:
        raise UsageError(f"--steps {steps} profiles nothing: use 1 or more")
    if seconds <= 0:
        raise UsageError(f"--seconds {seconds:g} is not a time: use seconds, such as 60")
    ranks = read_ranks("--rank", rank)
    folder = find_run(run)
    found = profile_ranks(folder, ranks, steps, seconds)
    for number, answer in found.items():
        print(f"rank {number}: {plural(answer['steps'], 'step')} in {folder / answer['file']}")
    print(f"`rollcall export {folder.name} --perfetto trace.json` shows {ranks_in_words(found)} beside the ops")

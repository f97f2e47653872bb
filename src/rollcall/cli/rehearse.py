"""The command line of `rollcall rehearse`."""

import contextlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollcall.cli.shared_options import AsJson
from rollcall.errors import UsageError
from rollcall.protocol.plan import Program

if TYPE_CHECKING:
    from rollcall.rehearse.network.link import Link
    from rollcall.rehearse.settings import RehearsalSettings


def rehearse(
    script: Annotated[Path, typer.Argument(help="The training script, unmodified.", metavar="SCRIPT")],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.", metavar="ARGS")] = None,
    ranks_in_world: Annotated[int, typer.Option("-n", help="Ranks of the world.", metavar="N")] = 8,
    gpus_per_host: Annotated[int, typer.Option(help="Number of GPUs of each host, and of its ranks.", metavar="N")] = 8,
    ranks: Annotated[str, typer.Option(help="Rehearse these ranks only: 0,1023 or 0-7. Default: all.")] = "all",
    classes: Annotated[
        bool, typer.Option("--classes", help="Run only some ranks of each kind; ranks of a kind make the same calls.")
    ] = False,
    steps: Annotated[
        int, typer.Option(help="Stop each rank after N optimizer steps; 0: run to the end.", metavar="N")
    ] = 3,
    gpu: Annotated[str, typer.Option(help="The GPU to pretend: h200, a100-80 …, or memory=24GB.")] = "h200",
    assume: Annotated[
        list[str] | None,
        typer.Option(help="The value that this line reads, where it is not known.", metavar="train.py:33=0.5"),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Also run the script on real gloo ranks here, and compare them op by op."),
    ] = False,
    rank_limit_s: Annotated[
        float, typer.Option(help="Stop a rank that makes no op and no step for S seconds.", metavar="S")
    ] = 120.0,
    step_ms: Annotated[
        float | None,
        typer.Option(help="Milliseconds of a step without the network, to estimate communication.", metavar="210"),
    ] = None,
    link: Annotated[
        str | None, typer.Option(help="Speed of a host's link, to estimate communication.", metavar="400gbit")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Also write the page of `rollcall report`, and print its path.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Run a script as each rank of a large job, on this machine alone, and print which ranks would hang, and where.

    It needs no GPU and no other machine. The script stays as it is, with nccl and cuda.

    [bold]Examples[/]

      rollcall rehearse -n 1024 train.py --batch 8

      rollcall rehearse -n 64 --gpus-per-host 4 --steps 0 train.py

      rollcall rehearse -n 1024 --ranks 0,1023 --gpu a100-80 train.py

      rollcall rehearse -n 8 --assume train.py:33=0.5 train.py

      rollcall rehearse -n 1024 --classes --steps 0 train.py

      rollcall rehearse -n 64 --step-ms 210 --link 400gbit train.py

      rollcall rehearse -n 4 --check train.py
    """
    if classes and ranks != "all":
        raise UsageError("--classes chooses the ranks itself: leave out --ranks, or --classes")
    settings = _settings(ranks_in_world, gpus_per_host, ranks, steps, gpu, assume or [])
    if rank_limit_s <= 0:
        raise UsageError(f"--rank-limit-s {rank_limit_s:g} is not a time: use a number of seconds, such as 600")
    settings = replace(settings, link=_link(step_ms, link), limit_s=rank_limit_s)
    if not script.is_file():
        raise UsageError(f"there is no script {script}: name a Python file")
    program = Program("script", str(script), tuple(args or ()))
    raise typer.Exit(_rehearse(settings, program, _Wanted(check, classes, report, json)))


def _settings(world_size: int, each: int, ranks: str, steps: int, gpu: str, assume: list[str]) -> "RehearsalSettings":
    from rollcall.rehearse.settings import MOST_RANKS, RehearsalSettings, parse_assumption, parse_gpu

    if not 1 <= world_size <= MOST_RANKS:
        raise UsageError(f"-n {world_size} is not a number of ranks: use 1 to {MOST_RANKS}")
    if each < 1:
        raise UsageError(f"--gpus-per-host {each} is not a number of GPUs: use 1 or more")
    if steps < 0:
        raise UsageError(f"--steps {steps} is not a number of steps: use 0 (to the end) or more")
    chosen = _chosen(ranks, world_size)
    assumptions = tuple(map(parse_assumption, assume))
    return RehearsalSettings(world_size, each, chosen, steps, parse_gpu(gpu), assumptions)


def _link(step_ms: float | None, link: str | None) -> "Link | None":
    from rollcall.rehearse.network.link import parse  # here: --help needs none of it

    return parse(step_ms, link)


def _chosen(text: str, world_size: int) -> tuple[int, ...]:
    from rollcall.protocol.rank_ranges import read_ranks

    found = read_ranks("--ranks", text)
    if found is None:
        return tuple(range(world_size))
    if not found or found[-1] >= world_size:
        raise UsageError(f"--ranks {text} does not fit the world, whose ranks are 0 to {world_size - 1}")
    return found


@dataclass(frozen=True)
class _Wanted:
    """What is done besides the rehearsal itself."""

    check: bool
    classes: bool
    report: bool
    json: bool


def _rehearse(settings: "RehearsalSettings", program: Program, wanted: _Wanted) -> int:
    from rollcall.rehearse import forked_ranks, rehearsal, terminal  # here: --help needs none of them
    from rollcall.rehearse.check import check_size

    if wanted.check:
        check_size(settings.world_size)
    if not wanted.json:
        print(terminal.heading(settings), flush=True)
    with contextlib.closing(forked_ranks.start_server(rehearsal.build_library())) as server, _Progress() as progress:
        outcome = rehearsal.run(settings, program, server, progress, wanted.check, wanted.classes)
        page = _write_page(outcome.folder, progress) if wanted.report else None
    print(terminal.as_json(outcome) if wanted.json else "\n".join(terminal.lines(outcome)))
    if page is not None and not wanted.json:
        print(f"page      {page}")
    return 0 if outcome.is_well else 1


def _write_page(folder: Path, progress: "_Progress") -> Path:
    from rollcall.report.write import write

    progress("the page", 1)
    return write(folder)


class _Progress:
    """A bar for each part of the work; nothing where stderr is no terminal."""

    def __enter__(self) -> "_Progress":
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self._bars.start()
        self._task: Any = self._bars.add_task("importing torch", total=None)
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()

    def __call__(self, part: str, count: int) -> None:
        """A part of the work begins, with `count` ranks; with an empty name, one rank is done."""
        if part:
            self._bars.update(self._task, total=1, completed=1, visible=False)
            self._task = self._bars.add_task(part, total=count)
        else:
            self._bars.advance(self._task)

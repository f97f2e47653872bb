"""The command line of `rollcall bench`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollcall.cli import host_options
from rollcall.cli.shared_options import HostFile, HostNames, HostPython, LinkBandwidth, LinkDelay, VirtualHosts
from rollcall.errors import UsageError
from rollcall.protocol.plan import Plan, Program, Show, check

if TYPE_CHECKING:
    from rollcall.bench.results import BenchResults
    from rollcall.bench.settings import BenchSettings

_OUT = "Output"


def _option(help_text: str, metavar: str | None = None, panel: str | None = None) -> Any:
    return typer.Option(help=help_text, metavar=metavar, rich_help_panel=panel, show_default=panel is None)


def bench(
    ops: Annotated[
        list[str] | None,
        typer.Argument(
            help="all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, send_one_way, send_two_way,"
            " barrier. Default: all.",
            metavar="OP",
        ),
    ] = None,
    ranks: Annotated[str, typer.Option("-n", "--ranks", help="Ranks per host. Default: 2; 1 on several hosts.")] = "",
    sizes: Annotated[str, _option("Sizes: 8-1G in steps, or 8,64K,16M.", "SIZES")] = "8-1G",
    step: Annotated[int, _option("Each size is N times the one before.", "N")] = 4,
    groups: Annotated[
        str, _option("Call each op in all rows or columns of a mesh at the same time: rows:2x4, columns:2x4.", "GROUPS")
    ] = "",
    like: Annotated[str, _option("Measure the ops, sizes and groups of a recorded run; or latest.", "RUN")] = "",
    queue: Annotated[
        bool | None,
        typer.Option(
            "--queue/--no-queue",
            help="Queue all calls and wait once, as nccl-tests does; or wait for each call. Default: queue on GPUs.",
            show_default=False,
        ),
    ] = None,
    graph: Annotated[
        bool, typer.Option("--graph", help="Capture the calls in a CUDA graph and time its replay. Needs nccl.")
    ] = False,
    check: Annotated[int, typer.Option("-c", "--check", help="0: do not check results.", metavar="0|1")] = 1,
    dtype: Annotated[
        str, _option("float32, float64, float16, bfloat16, int8, uint8, int32, int64.", "DTYPES")
    ] = "float32",
    place: Annotated[str, _option("out (the input is kept), in (the result overwrites it), or both.")] = "both",
    backend: Annotated[str, _option("gloo, nccl … Default: nccl where there are GPUs, else gloo.", "NAME")] = "",
    max_time: Annotated[
        float, _option("Seconds for all measurements; sizes that are too slow are left out.", "S")
    ] = 60.0,
    warmup: Annotated[int, _option("Untimed calls before each measurement.", "N")] = 5,
    iterations: Annotated[int, _option("Timed calls of each measurement, at most.", "N")] = 1000,
    compare: Annotated[
        Path | None,
        _option(
            "Compare with an earlier --json file; exit code 1 if an op is slower by more than noise.",
            "FILE",
            _OUT,
        ),
    ] = None,
    json: Annotated[Path | None, _option("Write all results to this file, for --compare.", "FILE", _OUT)] = None,
    csv: Annotated[Path | None, _option("Write a table to this file.", "FILE", _OUT)] = None,
    plot: Annotated[Path | None, _option("Draw time and bandwidth: a .png, .svg or .pdf file.", "FILE", _OUT)] = None,
    no_mpi: Annotated[
        bool, typer.Option("--no-mpi", help="Do not run the same ops with Open MPI.", rich_help_panel=_OUT)
    ] = False,
    hosts: HostNames = None,
    hostfile: HostFile = None,
    virtual_hosts: VirtualHosts = None,
    link: LinkBandwidth = None,
    delay: LinkDelay = None,
    python: HostPython = "",
) -> None:
    """Measure time and bandwidth of each op on this network and backend, and check the results of the ops.

    [bold]Examples[/]

      rollcall bench

      rollcall bench all_reduce -n 4 --sizes 8-64M --json now.json --compare before.json

      rollcall bench --hosts alpha:1,beta:1 all_reduce send_one_way

      rollcall bench all_reduce -n 8 --groups columns:2x4 --sizes 1M-64M --step 2 --queue

      rollcall bench all_reduce -n 8 --graph

      rollcall bench --like latest

      rollcall bench --virtual-hosts 3 --link 1gbit --plot network.png
    """
    from rollcall.bench import comparison, mpi, results, settings, terminal
    from rollcall.bench import plot as drawing
    from rollcall.bench import sizes as parsing

    if place not in settings.PLACES:
        raise UsageError(f"--place {place} is not known: use out, in or both")
    if max_time <= 0 or warmup < 0 or iterations < 1:
        raise UsageError("--max-time is in seconds above 0, --warmup a number from 0, --iterations a number from 1")
    if graph and queue is False:
        raise UsageError("--graph and --no-queue contradict each other: the calls of a graph are waited for once")
    wanted = settings.BenchSettings(
        ops=settings.check_names("an op", ops or [], settings.OPS),
        sizes_bytes=parsing.parse_list(sizes, step),
        dtypes=settings.check_names("a dtype", [name.strip() for name in dtype.split(",")], settings.DTYPES),
        places=settings.PLACES[place],
        backend=backend or None,
        warmup=warmup,
        iterations=iterations,
        max_time_s=max_time,
        queue=queue,
        graph=graph,
        check=check != 0,
    )
    recorded_ranks = 0
    if like:
        recorded_ranks, calls = _read_calls(like, bool(ops or groups))
        wanted = wanted.model_copy(update={"like": calls})
    before = results.read(compare) if compare is not None else None
    for path in (json, csv, plot):
        _check_writable(path)
    if plot is not None:
        drawing.check(plot)
    has_hosts = any(each is not None for each in (hosts, hostfile, virtual_hosts))
    found = _run(
        wanted,
        host_options.named(
            hosts,
            hostfile,
            virtual_hosts,
            ranks or ("1" if has_hosts else str(recorded_ranks or 2)),
            not has_hosts,
            os.environ,
        ),
        groups=groups,
        recorded_ranks=recorded_ranks,
        python=python,
        link=link,
        delay=delay,
    )
    if not (no_mpi or like or groups):
        missing = (
            "it runs on one machine only, and these results are from several hosts" if len(set(found.hosts)) > 1 else ""
        )
        measured = results.Mpi(missing=missing) if missing else mpi.measure(found)
        found = found.model_copy(update={"mpi": measured})
    compared = comparison.compare(before, found) if before is not None else None
    terminal.show(found, compared)
    if json is not None:
        results.write(json, found.model_dump_json(indent=1) + "\n")
    if csv is not None:
        results.write(csv, results.to_csv(found))
    if plot is not None:
        drawing.save(found, plot)
    is_bad = any(row.wrong for row in found.rows) or (compared is not None and compared.of("slower"))
    raise typer.Exit(1 if is_bad else 0)


def _check_writable(path: Path | None) -> None:
    """Checked before measuring, which takes minutes."""
    if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"cannot write {path}: choose a file in a folder that exists and can be written")


def _read_calls(name: str, has_more: bool) -> Any:
    from rollcall.bench import recorded
    from rollcall.runs import find_recording

    if has_more:
        raise UsageError("--like takes ops and groups from the run: leave out OP and --groups")
    newest = recorded.find_newest() if name == "latest" else None
    return recorded.read_calls(newest or find_recording(None if name == "latest" else name))


def _run(
    wanted: "BenchSettings", found: host_options.Hosts, groups: str, recorded_ranks: int, **settings: Any
) -> "BenchResults":
    """Start the ranks as `rollcall run` does, and read what they measured."""
    from rollcall.bench import results
    from rollcall.bench.settings import parse_groups
    from rollcall.coordinator.launcher import run
    from rollcall.runs import folder_of

    ranks = sum(host.slots for host in found.hosts)
    if recorded_ranks and ranks != recorded_ranks:
        raise UsageError(
            f"the recorded run had {recorded_ranks} ranks, and this command starts {ranks}: start {recorded_ranks}"
        )
    if groups:
        wanted = wanted.model_copy(update={"groups": parse_groups(groups, ranks)})
    plan = Plan(
        program=Program("module", "rollcall.bench.ranks", (wanted.model_dump_json(),)),
        hosts=found.hosts,
        transport=host_options.transport(found.kind, **settings),
        run_id=os.urandom(6).hex(),
        show=Show(ranks=(0,)),
        cwd=os.getcwd(),
    )
    if plan.world_size < 2 and wanted.backend != "nccl":  # on one GPU, nccl's calls and copies can be measured
        raise UsageError("a benchmark needs 2 ranks or more: use -n 2, or more hosts")
    check(plan)
    if code := run(plan):
        raise typer.Exit(code)
    return results.read(folder_of(plan.run_id) / results.FILE)

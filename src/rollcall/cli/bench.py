"""The command line of `rollcall bench`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollcall.cli import host_options
from rollcall.errors import UsageError
from rollcall.protocol.plan import Plan, Program, Show, check

if TYPE_CHECKING:
    from rollcall.bench.results import Results
    from rollcall.bench.settings import Settings

_HOSTS = "Hosts"
_OUT = "Output"


def _option(help_text: str, metavar: str | None = None, panel: str | None = None) -> Any:
    return typer.Option(help=help_text, metavar=metavar, rich_help_panel=panel, show_default=panel is None)


def bench(
    ops: Annotated[
        list[str] | None,
        typer.Argument(
            help="all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, send_one_way, send_two_way,"
            " barrier. Default: all.",
            metavar="[OP]...",
        ),
    ] = None,
    ranks: Annotated[str, typer.Option("-n", "--ranks", help="Ranks per host. Default: 2; 1 on several hosts.")] = "",
    sizes: Annotated[str, _option("Sizes: 8-1G in steps of four, or 8,64K,16M.", "SIZES")] = "8-1G",
    dtype: Annotated[
        str, _option("float32, float64, float16, bfloat16, int8, uint8, int32, int64.", "DTYPES")
    ] = "float32",
    place: Annotated[str, _option("out, in, or both: the result beside what was given, or in its place.")] = "both",
    backend: Annotated[str, _option("gloo, nccl … Default: nccl where there are GPUs, else gloo.", "NAME")] = "",
    max_time: Annotated[float, _option("Seconds for all measurements; large sizes are left out for it.", "S")] = 60.0,
    warmup: Annotated[int, _option("Calls before each measurement.", "N")] = 5,
    iterations: Annotated[int, _option("Calls of each measurement, at most.", "N")] = 1000,
    compare: Annotated[
        Path | None,
        _option("Against an earlier --json; exit code 1 if something is slower beyond noise.", "FILE", _OUT),
    ] = None,
    json: Annotated[Path | None, _option("Write everything here, for --compare.", "FILE", _OUT)] = None,
    csv: Annotated[Path | None, _option("Write a table here.", "FILE", _OUT)] = None,
    plot: Annotated[Path | None, _option("Draw time and bandwidth here: .png, .svg or .pdf.", "FILE", _OUT)] = None,
    no_mpi: Annotated[
        bool, typer.Option("--no-mpi", help="Leave out Open MPI's figures beside ours.", rich_help_panel=_OUT)
    ] = False,
    hosts: Annotated[str, _option("Hosts with their slots, reached by ssh.", "a:1,b:1", _HOSTS)] = "",
    hostfile: Annotated[Path | None, _option("The same from a file, one a line.", "FILE", _HOSTS)] = None,
    virtual_hosts: Annotated[int | None, _option("So many hosts on this machine.", "N", _HOSTS)] = None,
    link: Annotated[str | None, _option("Speed of the virtual hosts' network.", "1gbit", _HOSTS)] = None,
    delay: Annotated[str | None, _option("Delay of the virtual hosts' network, one way.", "2ms", _HOSTS)] = None,
    python: Annotated[str, _option("The Python on the hosts. Default: the path of this one.", "PATH", _HOSTS)] = "",
) -> None:
    """Measure how fast this network and backend are: latency, algorithm and bus bandwidth of each op, checked.

    [bold]Examples[/]

      rollcall bench

      rollcall bench all_reduce -n 4 --sizes 8-64M --json now.json --compare before.json

      rollcall bench --hosts alpha:1,beta:1 all_reduce send_one_way

      rollcall bench --virtual-hosts 3 --link 1gbit --plot network.png
    """
    from rollcall.bench import comparing, mpi, results, settings, showing
    from rollcall.bench import sizes as parsing

    if place not in settings.PLACES:
        raise UsageError(f"--place {place} is not known: use out, in or both")
    if max_time <= 0 or warmup < 0 or iterations < 1:
        raise UsageError("--max-time is in seconds above 0, --warmup a number from 0, --iterations a number from 1")
    wanted = settings.Settings(
        ops=settings.chosen("an op", ops or [], settings.OPS),
        sizes_bytes=parsing.parse_list(sizes),
        dtypes=settings.chosen("a dtype", [name.strip() for name in dtype.split(",")], settings.DTYPES),
        places=settings.PLACES[place],
        backend=backend or None,
        warmup=warmup,
        iterations=iterations,
        max_time_s=max_time,
    )
    before = results.read(compare) if compare is not None else None
    for path in (json, csv, plot):
        _check_writable(path)
    has_hosts = bool(hosts or hostfile or virtual_hosts is not None)
    found = _run(
        wanted,
        host_options.named(
            hosts, hostfile, virtual_hosts, ranks or ("1" if has_hosts else "2"), not has_hosts, os.environ
        ),
        python=python,
        link=link,
        delay=delay,
    )
    if not no_mpi:
        missing = "its figures are of one machine, and these of several hosts" if len(set(found.hosts)) > 1 else ""
        measured = results.Mpi(missing=missing) if missing else mpi.measure(found)
        found = found.model_copy(update={"mpi": measured})
    comparison = comparing.compare(before, found) if before is not None else None
    showing.show(found, comparison)
    if json is not None:
        results.write(json, found.model_dump_json(indent=1) + "\n")
    if csv is not None:
        results.write(csv, results.to_csv(found))
    if plot is not None:
        from rollcall.bench import plot as drawing

        drawing.draw(found, plot)
    is_bad = any(row.wrong for row in found.rows) or (comparison is not None and comparison.of("slower"))
    raise typer.Exit(1 if is_bad else 0)


def _check_writable(path: Path | None) -> None:
    """Before minutes of measuring, not after them."""
    if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"cannot write {path}: choose a file in a folder that exists and can be written")


def _run(wanted: "Settings", found: host_options.Hosts, **settings: Any) -> "Results":
    """The benchmark's ranks, as `rollcall run` would start them."""
    from rollcall.bench import results
    from rollcall.coordinator.launcher import run
    from rollcall.coordinator.run_folder import folder_of

    plan = Plan(
        program=Program("module", "rollcall.bench.ranks", (wanted.model_dump_json(),)),
        hosts=found.hosts,
        transport=host_options.transport(found.kind, **settings),
        run_id=os.urandom(6).hex(),
        show=Show(ranks=(0,)),
        cwd=os.getcwd(),
    )
    if plan.world_size < 2:
        raise UsageError("one rank has nobody to speak to: use -n 2 or more, or more hosts")
    check(plan)
    if code := run(plan):
        raise typer.Exit(code)
    return results.read(folder_of(plan.run_id) / results.FILE)

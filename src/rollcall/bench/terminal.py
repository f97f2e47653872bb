"""Results as tables."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rollcall.bench.comparison import BenchComparison, Change
from rollcall.bench.results import BenchResults, MpiRow, Pair, Row
from rollcall.units import in_binary_bytes, in_seconds, plural

_MOST_HOSTS_IN_MATRIX = 16


def show(results: BenchResults, comparison: BenchComparison | None) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:  # a pipe has no width: with a large one, lines are not broken there
        console = Console(highlight=False, width=200)
    hosts = len(set(results.hosts))
    console.print(
        f"[bold]{results.ranks} ranks[/] on {plural(hosts, 'host')}, {escape(results.backend)} on"
        f" {results.device}, {', '.join(f'{name} {number}' for name, number in results.versions.items())};"
        f" {results.seconds:.0f} s"
    )
    mpi = {(row.op, row.size_bytes): row for row in results.mpi.rows} if results.mpi else {}
    differences = {each.row.key: each for each in comparison.differences} if comparison else {}
    if results.settings.like:
        console.print("", _recorded_table(results.rows), "", _recorded_sentence(results.rows))
    rows_of_ops = () if results.settings.like else results.rows
    for (op, dtype), rows in groupby(rows_of_ops, key=lambda row: (row.op, row.dtype)):
        console.print("", _op_table(op, dtype, list(rows), mpi, differences))
    if results.pairs:
        console.print("", _matrix(results.pairs))
    console.print()
    for line in _remarks(results):
        console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)
    wrong = [row for row in results.rows if row.wrong]
    for row in wrong:
        console.print(f"[red]✗ {row.op} of {in_binary_bytes(row.size_bytes)}: {row.wrong} elements are wrong[/]")
    if results.rows and not results.settings.check:
        console.print("the results were not checked (-c 0)")
    elif results.rows and not wrong:
        console.print(f"[green]✓[/] the results of all {len(results.rows)} measurements are correct")
    if comparison is not None:
        for other_differences in comparison.other_differences:
            console.print(f"[yellow]the runs differ in {escape(other_differences)}[/]", soft_wrap=True)
        mark = "[red]✗[/]" if comparison.of("slower") else "[green]✓[/]"
        console.print(f"{mark} [bold]compared:[/] {escape(comparison.sentence)}", soft_wrap=True)


def _recorded_table(rows: Sequence[Row]) -> Table:
    """Calls of a recorded run: how long one took there, and how long it takes here."""
    table = Table("op", "size", "groups", title="as recorded", title_justify="left", title_style="bold", box=None)
    for name in ("calls", "in the run", "here", "run / here"):
        table.add_column(name, justify="right", header_style="dim")
    for row in sorted(rows, key=lambda row: -row.calls * (row.recorded_s or 0)):
        then_s = row.recorded_s or 0.0
        cells = (f"{row.calls:,}", in_seconds(then_s), in_seconds(row.p50_s), f"{then_s / row.p50_s:.2f}")
        table.add_row(row.op, in_binary_bytes(row.size_bytes), row.groups, *cells)
    return table


def _recorded_sentence(rows: Sequence[Row]) -> str:
    then_s = sum(row.calls * (row.recorded_s or 0) for row in rows)
    now_s = sum(row.calls * row.p50_s for row in rows)
    return (
        f"these calls took {in_seconds(then_s)} in the run, once all ranks had arrived, and would take "
        f"{in_seconds(now_s)} here, where the ranks do nothing else"
    )


def _op_table(
    op: str,
    dtype: str,
    rows: list[Row],
    mpi: dict[tuple[str, int], MpiRow],
    differences: dict[tuple[str, str, int, str], Change],
) -> Table:
    has_size = op != "barrier"
    titles = {"out": "out of place", "in": "in place"} if any(row.place == "in" for row in rows) else {"out": ""}
    columns = ["median", "p99", *(["algorithm", "bus"] if has_size else []), *(["then → now"] if differences else [])]
    table = Table(title=f"{op} {dtype if has_size else ''}", title_justify="left", title_style="bold", box=None)
    table.add_column("size" if has_size else "", justify="right")
    for title in titles.values():
        for number, column in enumerate(columns):
            above = f"{'' if number else f'│ {title}'}\n" if title else ""
            table.add_column(above + column, justify="right", header_style="dim")
    with_mpi = any((op, row.size_bytes) in mpi for row in rows)
    if with_mpi:
        table.add_column("│ Open MPI\nmean" if "in" in titles else "Open MPI mean", justify="right", header_style="dim")
    for size, of_size in groupby(rows, key=lambda row: row.size_bytes):
        by_place = {str(row.place): row for row in of_size}
        cells = [cell for place in titles for cell in _cells(by_place.get(place), columns, differences)]
        other = mpi.get((op, size))
        mpi_cells = [in_seconds(other.mean_s) if other else ""] if with_mpi else []
        table.add_row(in_binary_bytes(size) if has_size else "", *cells, *mpi_cells)
    return table


def _cells(row: Row | None, columns: list[str], differences: dict[tuple[str, str, int, str], Change]) -> list[str]:
    if row is None:
        return [""] * len(columns)
    texts = {
        "median": f"[bold]{in_seconds(row.p50_s)}[/]{' [red]✗[/]' if row.wrong else ''}",
        "p99": in_seconds(row.p99_s),
        "algorithm": _speed(row.algorithm_gb_s),
        "bus": _speed(row.bus_gb_s),
        "then → now": _change(differences.get(row.key)),
    }
    return [texts[column] for column in columns]


def _change(difference: Change | None) -> str:
    if difference is None:
        return ""
    colour = {"slower": "red", "faster": "green", "same": "dim"}[difference.judgement]
    sign = {"slower": "▲", "faster": "▼", "same": "="}[difference.judgement]
    return f"[{colour}]{sign} {difference.ratio:.2f} ×[/]"


def _matrix(pairs: Iterable[Pair]) -> Table:
    """Half of the round trip, and the bandwidth, between each two hosts."""
    found = {frozenset((pair.start, pair.end)): pair for pair in pairs}
    names = list(dict.fromkeys(name for pair in found.values() for name in (pair.start, pair.end)))
    if len(names) > _MOST_HOSTS_IN_MATRIX:
        table = Table(
            "from", "to", "one way", "bandwidth", title="slowest pairs of hosts", title_justify="left", box=None
        )
        for pair in sorted(found.values(), key=lambda pair: pair.gb_s)[:_MOST_HOSTS_IN_MATRIX]:
            table.add_row(pair.start, pair.end, in_seconds(pair.latency_s), _speed(pair.gb_s))
        return table
    table = Table(title="between hosts: 8 B one way, and 4 MiB", title_justify="left", title_style="bold", box=None)
    table.add_column("")
    for name in names:
        table.add_column(escape(name), justify="right", header_style="dim")
    for name in names:
        cells = [found.get(frozenset((name, other))) if name != other else None for other in names]
        table.add_row(escape(name), *(f"{in_seconds(p.latency_s)}, {_speed(p.gb_s)}" if p else "·" for p in cells))
    return table


def _remarks(results: BenchResults) -> list[str]:
    remarks = [f"left out: {each}" for each in results.left_out]
    if results.mpi is not None and results.mpi.missing:
        remarks.append(f"Open MPI: {results.mpi.missing}")
    elif results.mpi is not None:
        remarks.append(f"{results.mpi.version} on this machine, with shared memory if possible; float, out of place")
    return remarks


def _speed(gb_s: float) -> str:
    for unit, factor in (("GB/s", 1.0), ("MB/s", 1e3)):
        if gb_s * factor >= 0.1:
            return f"{gb_s * factor:.3g} {unit}"
    return f"{gb_s * 1e6:.3g} kB/s"

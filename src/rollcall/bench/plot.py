"""A picture: time and bus bandwidth over size, a line for each op."""

from itertools import groupby
from pathlib import Path
from typing import Any

from rollcall.bench.results import BenchResults
from rollcall.errors import UsageError, cannot_write
from rollcall.lab import plots
from rollcall.units import plural

_MARKERS = "osD^vPX*"
_SUFFIXES = (".png", ".svg", ".pdf")


def check(path: Path) -> None:
    """Called before the ranks measure: a wrong file must not be noticed at the end."""
    plots.check_installed("leave --plot out")
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"cannot draw {path}: name a file that ends in .png, .svg or .pdf")


def save(results: BenchResults, path: Path) -> None:
    try:
        plots.save(_draw, results, path)
    except OSError as error:
        raise cannot_write(path, error) from error


def _draw(results: BenchResults, figure: plots.Figure) -> None:
    figure.set_size_inches(12, 4.8)
    time_axes, speed_axes = figure.subplots(1, 2)
    rows = [row for row in results.rows if row.size_bytes]
    rows = [row for row in rows if row.place == "out"] or rows
    lines = [(key, list(found)) for key, found in groupby(rows, key=lambda row: (row.op, row.dtype))]
    with_dtype = len({dtype for (_, dtype), _ in lines}) > 1
    for number, ((op, dtype), found) in enumerate(lines):
        style: dict[str, Any] = {
            "color": plots.colour_of(number),
            "marker": _MARKERS[number % len(_MARKERS)],
            "markersize": 4,
            "linewidth": 1.5,
            "label": f"{op} {dtype}" if with_dtype else op,
        }
        size = [row.size_bytes for row in found]
        time_axes.plot(size, [row.p50_s * 1e6 for row in found], **style)
        speed_axes.plot(size, [row.bus_gb_s for row in found], **style)
    hosts = len(set(results.hosts))
    figure.suptitle(f"{results.ranks} ranks on {plural(hosts, 'host')}, {results.backend}", fontweight="bold")
    for axes, title, label in ((time_axes, "time", "median, µs"), (speed_axes, "bus bandwidth", "GB/s")):
        axes.set_xscale("log", base=2)
        axes.set(title=title, xlabel="size, bytes", ylabel=label)
        axes.grid()
    time_axes.set_yscale("log")
    time_axes.legend(fontsize=8)

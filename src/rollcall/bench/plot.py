"""A picture: time and bus bandwidth over size, a line for each op."""

import os
from itertools import groupby
from pathlib import Path
from typing import Any

from rollcall.bench.results import BenchResults
from rollcall.errors import UsageError
from rollcall.lab.plots import colour_of

_MARKS = "osD^vPX*"


def draw(results: BenchResults, path: Path) -> None:
    os.environ.setdefault("MPLBACKEND", "Agg")
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install 'torch-rollcall[plots]'") from None
    figure, (time_axes, speed_axes) = plt.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    rows = [row for row in results.rows if row.size_bytes and row.place == "out"] or [
        row for row in results.rows if row.size_bytes
    ]
    lines = [(key, list(found)) for key, found in groupby(rows, key=lambda row: (row.op, row.dtype))]
    with_dtype = len({dtype for (_, dtype), _ in lines}) > 1
    for number, ((op, dtype), found) in enumerate(lines):
        style: dict[str, Any] = {
            "color": colour_of(number),
            "marker": _MARKS[number % len(_MARKS)],
            "markersize": 4,
            "linewidth": 1.5,
            "label": f"{op} {dtype}" if with_dtype else op,
        }
        size = [row.size_bytes for row in found]
        time_axes.plot(size, [row.p50_s * 1e6 for row in found], **style)
        speed_axes.plot(size, [row.bus_gb_s for row in found], **style)
    hosts = len(set(results.hosts))
    figure.suptitle(f"{results.ranks} ranks on {hosts} host{'s' * (hosts > 1)}, {results.backend}", fontweight="bold")
    for axes, title, label in (
        (time_axes, "time", "median, µs"),
        (speed_axes, "bus bandwidth", "GB/s"),
    ):
        axes.set_xscale("log", base=2)
        axes.set_title(title)
        axes.set_xlabel("size, bytes")
        axes.set_ylabel(label)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    time_axes.set_yscale("log")
    time_axes.legend(frameon=False, fontsize=8)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot draw {path} ({error}): name a file that ends in .png, .svg or .pdf") from error
    finally:
        plt.close(figure)

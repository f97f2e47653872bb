"""Who waits for whom, and which host sends to which: a matrix as coloured cells, by bokeh."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from bokeh.models import (
    ColumnDataSource,
    CustomJSTickFormatter,
    HoverTool,
    LinearColorMapper,
    Range1d,
)
from bokeh.models.annotations import ColorBar
from bokeh.plotting import figure
from bokeh.transform import transform
from numpy.typing import NDArray

from rollcall.explain.waits import Waits
from rollcall.report.figures import plain, whole_numbers
from rollcall.units import in_bytes

_MOST_LINES = 64  # more ranks or hosts than that share a line
# One colour, from nearly transparent to opaque: it suits a light and a dark page.
_SHADES = [f"#b35806{alpha:02x}" for alpha in range(24, 256)]


def waits(found: Waits) -> figure:
    """Who waits (down) for whom (across)."""
    seconds, step = found.matrix(_MOST_LINES)
    names = _line_names(step, len(found.caused_s))
    words = [
        [f"rank {who} waited {seconds[down, across]:.3f} s for rank {whom}" for across, whom in enumerate(names)]
        for down, who in enumerate(names)
    ]
    return _draw("matrix", seconds, seconds >= 0, _Axes("for rank", "rank that waited", step), "s", words)


def traffic(host_count: int, pairs: Sequence[tuple[int, int, int]]) -> figure:
    """Which host (down) sends how much to which (across). A pair is from, to, bytes."""
    step = -(-host_count // _MOST_LINES)
    names = _line_names(step, host_count)
    sizes = np.zeros((len(names), len(names)))
    for source, target, size_bytes in pairs:
        sizes[source // step, target // step] += size_bytes
    words = [
        [f"host {source} → host {target}: {in_bytes(sizes[down, across])}" for across, target in enumerate(names)]
        for down, source in enumerate(names)
    ]
    return _draw("hosts", sizes / 1e9, sizes > 0, _Axes("to host", "from host", step), "GB", words)


@dataclass(frozen=True)
class _Axes:
    """`step`: how many ranks or hosts share a line."""

    across: str
    down: str
    step: int


def _draw(
    name: str,
    values: NDArray[np.float64],
    has_cell: NDArray[np.bool_],
    axes: _Axes,
    unit: str,
    words: Sequence[Sequence[str]],
) -> figure:
    """`words`: what the pointer shows of each cell."""
    count = len(values)
    down, across = np.nonzero(has_cell)
    cells = ColumnDataSource(
        {
            "down": down,
            "across": across,
            "value": values[has_cell],
            "words": [words[row][column] for row, column in np.argwhere(has_cell).tolist()],
        }
    )
    plot = figure(
        name=name,
        height=380,
        sizing_mode="stretch_width",
        x_range=Range1d(start=-0.5, end=count - 0.5),
        y_range=Range1d(start=count - 0.5, end=-0.5),
        tools="save",
        x_axis_location="above",
    )
    colours = LinearColorMapper(palette=_SHADES, low=0, high=max(float(values.max()), 1e-9))
    fill = transform("value", colours)
    plot.rect("across", "down", 0.94, 0.94, source=cells, line_color=None, fill_color=fill)
    with_unit = CustomJSTickFormatter(args={"unit": unit}, code="return `${+tick.toPrecision(3)} ${unit}`")
    plot.add_layout(ColorBar(color_mapper=colours, width=10, formatter=with_unit, background_fill_color=None), "right")
    plot.add_tools(HoverTool(tooltips=[("", "@words")]))
    plot.xaxis.axis_label, plot.yaxis.axis_label = axes.across, axes.down
    for axis in (plot.xaxis, plot.yaxis):
        axis.ticker = whole_numbers()
        # The label has the first rank of a line; the tooltip has all.
        axis.formatter = CustomJSTickFormatter(
            args={"step": axes.step, "count": count}, code="return tick < 0 || tick >= count ? '' : tick * step"
        )
    plot.grid.visible = False
    return plain(plot)


def _line_names(step: int, count: int) -> list[str]:
    """The ranks or hosts of each line, as "5" or "8–15"."""
    bounds = ((first, min(first + step, count) - 1) for first in range(0, count, step))
    return [str(first) if first == last else f"{first}–{last}" for first, last in bounds]

"""The plots of a rehearsal, by bokeh."""

from collections.abc import Sequence

import numpy as np
from bokeh.models import (
    ColumnDataSource,
    CustomJSTickFormatter,
    HoverTool,
    LinearColorMapper,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.models.annotations import ColorBar, Span
from bokeh.plotting import figure

from rollcall.report.figures import CHOSEN, OPS, SHADES, plain, whole_numbers
from rollcall.report.rehearsed import MemoryCourse, RehearsedResults
from rollcall.units import in_binary_bytes, in_bytes

_MOST_LINES = 64  # of the hosts: more share a line
_NEAR_CARD = 0.5  # of the card: from there on it is drawn, too. Below, it would leave the courses no room.


def by_place(found: RehearsedResults) -> dict[str, figure]:
    """By the id of their place in the page."""
    top = max((sum(sizes) for course in found.courses for sizes in course.size_bytes), default=0)
    shown = {f"memory-plot-{number}": memory(found, course, top) for number, course in enumerate(found.courses)}
    if found.goes_between_hosts:
        pairs = [(pair["from"], pair["to"], pair["bytes"]) for pair in found.traffic["between_hosts"]]
        shown["hosts-plot"] = hosts(found.hosts, pairs)
    return shown


def memory(found: RehearsedResults, course: MemoryCourse, top_bytes: int) -> figure:
    """Categories on top of each other, allocation by allocation. `top_bytes`: all courses have one scale."""
    sizes = np.array(course.size_bytes, dtype=float).reshape(-1, len(found.categories))
    source = ColumnDataSource(
        {
            "number": course.numbers,
            "phase": course.phases,
            "total": sizes.sum(1) / 2**30,
            "words": [in_binary_bytes(each) for each in sizes.sum(1)],
            **{name: sizes[:, column] / 2**30 for column, name in enumerate(found.categories)},
            **{f"{name} in words": list(map(in_binary_bytes, sizes[:, n])) for n, name in enumerate(found.categories)},
        }
    )
    has_card = top_bytes >= _NEAR_CARD * found.gpu_bytes
    plot = figure(
        name="memory",
        height=300,
        sizing_mode="stretch_width",
        x_range=Range1d(start=0, end=max(course.numbers, default=1)),
        y_range=Range1d(start=0, end=1.08 * max(top_bytes, has_card * found.gpu_bytes, 1) / 2**30),
        tools="save",
    )
    colours = OPS[: len(found.categories)]
    plot.varea_stack(
        found.categories, x="number", source=source, color=colours, alpha=0.8, legend_label=list(found.categories)
    )
    line = plot.line("number", "total", source=source, line_color=None)
    peak = int(sizes.sum(1).argmax())
    plot.add_layout(Span(location=course.numbers[peak], dimension="height", line_color=CHOSEN, line_dash="dashed"))
    plot.scatter([course.numbers[peak]], [sizes[peak].sum() / 2**30], size=9, fill_color=CHOSEN, line_color=None)
    if has_card:
        plot.add_layout(Span(location=found.gpu_bytes / 2**30, dimension="width", line_color="#c8102e", line_width=2))
    told = [("", "@words in @phase"), *((name, f"@{{{name} in words}}") for name in reversed(found.categories))]
    plot.add_tools(HoverTool(tooltips=told, renderers=[line], mode="vline", line_policy="nearest"))
    plot.xaxis.axis_label, plot.yaxis.axis_label = "allocations of a rank, one after the other", "GiB"
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0")
    plot.add_layout(plot.legend[0], "above")
    plot.legend.orientation, plot.legend.border_line_color = "horizontal", None
    plot.legend.background_fill_alpha = 0
    plot.xgrid.visible = False
    return plain(plot)


def hosts(count: int, pairs: Sequence[tuple[int, int, int]]) -> figure:
    """Which host (down) sends how much to which (across)."""
    step = -(-count // _MOST_LINES)
    lines = -(-count // step)
    sizes = np.zeros((lines, lines))
    for source, target, size_bytes in pairs:
        sizes[source // step, target // step] += size_bytes
    rows, columns = np.nonzero(sizes)
    names = [_hosts(line * step, min(line * step + step, count) - 1) for line in range(lines)]
    cells = ColumnDataSource(
        {
            "from": rows,
            "to": columns,
            "gb": sizes[rows, columns] / 1e9,
            "words": [f"{names[r]} → {names[c]}: {in_bytes(sizes[r, c])}" for r, c in zip(rows, columns, strict=True)],
        }
    )
    plot = figure(
        name="hosts",
        height=360,
        sizing_mode="stretch_width",
        x_range=Range1d(start=-0.5, end=lines - 0.5),
        y_range=Range1d(start=lines - 0.5, end=-0.5),
        tools="save",
        x_axis_location="above",
    )
    mapper = LinearColorMapper(palette=SHADES, low=0, high=float(sizes.max()) / 1e9)
    plot.rect("to", "from", 0.94, 0.94, source=cells, line_color=None, fill_color={"field": "gb", "transform": mapper})
    plot.add_layout(ColorBar(color_mapper=mapper, width=10, title="GB", background_fill_color=None), "right")
    plot.add_tools(HoverTool(tooltips=[("", "@words")]))
    plot.xaxis.axis_label, plot.yaxis.axis_label = "to host", "from host"
    for axis in (plot.xaxis, plot.yaxis):
        axis.ticker = whole_numbers()
        axis.formatter = CustomJSTickFormatter(
            args={"step": step, "count": lines}, code="return tick < 0 || tick >= count ? '' : tick * step"
        )
    plot.grid.visible = False
    return plain(plot)


def _hosts(first: int, last: int) -> str:
    return f"host {first}" if first == last else f"hosts {first}–{last}"

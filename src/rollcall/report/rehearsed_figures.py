"""The plots of a rehearsal, by bokeh."""

import numpy as np
from bokeh.models import (
    ColumnDataSource,
    HoverTool,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.models.annotations import Span
from bokeh.plotting import figure

from rollcall.report import heat_map
from rollcall.report.figures import CHOSEN, OPS, plain, put_legend_above
from rollcall.report.rehearsed import MemoryCurve, RehearsedResults
from rollcall.units import in_binary_bytes

_NEAR_CARD = 0.5  # of the GPU's memory: if the peak is lower, the limit is not drawn, and the curves fill the plot


def by_place(found: RehearsedResults) -> dict[str, figure]:
    """By the id of their place in the page."""
    top = max((sum(sizes) for curve in found.curves for sizes in curve.size_bytes), default=0)
    shown = {f"memory-plot-{number}": memory(found, curve, top) for number, curve in enumerate(found.curves)}
    if found.goes_between_hosts:
        pairs = [(pair["from"], pair["to"], pair["bytes"]) for pair in found.traffic["between_hosts"]]
        shown["hosts-plot"] = heat_map.traffic(found.hosts, pairs)
    return shown


def memory(found: RehearsedResults, curve: MemoryCurve, top_bytes: int) -> figure:
    """Categories on top of each other, allocation by allocation. `top_bytes`: all curves have one scale."""
    sizes = np.array(curve.size_bytes, dtype=float).reshape(-1, len(found.categories))
    source = ColumnDataSource(
        {
            "number": curve.numbers,
            "phase": curve.phases,
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
        x_range=Range1d(start=0, end=max(curve.numbers, default=1)),
        y_range=Range1d(start=0, end=1.08 * max(top_bytes, has_card * found.gpu_bytes, 1) / 2**30),
        tools="save",
    )
    colours = OPS[: len(found.categories)]
    plot.varea_stack(
        found.categories, x="number", source=source, color=colours, alpha=0.8, legend_label=list(found.categories)
    )
    line = plot.line("number", "total", source=source, line_color=None)
    peak = int(sizes.sum(1).argmax())
    plot.add_layout(Span(location=curve.numbers[peak], dimension="height", line_color=CHOSEN, line_dash="dashed"))
    plot.scatter([curve.numbers[peak]], [sizes[peak].sum() / 2**30], size=9, fill_color=CHOSEN, line_color=None)
    if has_card:
        plot.add_layout(Span(location=found.gpu_bytes / 2**30, dimension="width", line_color="#c8102e", line_width=2))
    tooltips = [("", "@words in @phase"), *((name, f"@{{{name} in words}}") for name in reversed(found.categories))]
    plot.add_tools(HoverTool(tooltips=tooltips, renderers=[line], mode="vline", line_policy="nearest"))
    plot.xaxis.axis_label, plot.yaxis.axis_label = "allocations of a rank, one after the other", "GiB"
    plot.xaxis.formatter = NumeralTickFormatter(format="0,0")
    put_legend_above(plot)
    plot.xgrid.visible = False
    return plain(plot)

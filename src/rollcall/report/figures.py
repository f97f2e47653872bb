"""The plots of the page, by bokeh. assets/theme.js sets the colours of text and axes, light or dark."""

from collections.abc import Sequence

import numpy as np
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJSTickFormatter,
    FactorRange,
    HoverTool,
    PanTool,
    Range1d,
    ResetTool,
    SaveTool,
    WheelZoomTool,
)
from bokeh.models.annotations import Arrow, VeeHead
from bokeh.plotting import figure

from rollcall.explain.costs import Speed
from rollcall.explain.waits import Waits

# Okabe and Ito's colours, for any colour vision; assets/page.css has them, too.
COMPUTE, COMMUNICATE, WAIT = "#b9c2cd", "#0072b2", "#e69f00"
CHOSEN = "#d55e00"
OPS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#882255")
_MARKERS = ("circle", "square", "diamond", "triangle", "inverted_triangle", "plus", "x", "star")
_MOST_BARS = 14
_NOTABLE = 0.01  # of the run: what saves less gets no bar
_LANE_PX, _LEAST_PX, _MOST_PX = 26, 130, 620


def timeline(lanes: int, seconds: float, has_phases: bool, has_times: bool = True) -> figure:
    """One lane per rank from the top down, phases above them. assets/timeline.js fills it with what is in view."""
    top = -0.5 - (max(0.8, lanes / 40) if has_phases else 0)
    plot = figure(
        name="timeline",
        height=min(max(lanes * _LANE_PX, _LEAST_PX), _MOST_PX) + 60,
        sizing_mode="stretch_width",
        x_range=Range1d(start=0, end=max(seconds, 1e-6), bounds="auto", min_interval=2e-6),
        y_range=Range1d(start=lanes - 0.5, end=top, bounds=(top, lanes - 0.5), min_interval=1),
        tools="",
        output_backend="canvas",
    )
    zoom, pan = WheelZoomTool(dimensions="width"), PanTool(dimensions="both")
    plot.add_tools(pan, zoom, WheelZoomTool(dimensions="height"), ResetTool(), SaveTool())
    plot.toolbar.active_scroll, plot.toolbar.active_drag = zoom, pan
    plot.toolbar.logo = None
    bands = _source("bands", left=[], right=[], top=[], bottom=[], colour=[])
    plot.quad("left", "right", "top", "bottom", source=bands, fill_color="colour", fill_alpha=0.1, line_color=None)
    heads = _source("heads", left=[], right=[], top=[], bottom=[], colour=[], name=[])
    plot.quad("left", "right", "top", "bottom", source=heads, fill_color="colour", fill_alpha=0.45, line_color=None)
    plot.text("left", "top", "name", source=heads, text_font_size="12px", text_baseline="top", x_offset=4, y_offset=2)
    image = _source("image", image=[np.zeros((1, 1), dtype=np.uint32)], x=[0], y=[0], dw=[0], dh=[0])
    plot.image_rgba("image", "x", "y", "dw", "dh", source=image)
    bars = _source("bars", left=[], right=[], top=[], bottom=[], colour=[])
    plot.quad("left", "right", "top", "bottom", source=bars, fill_color="colour", line_color=None)
    chosen = _source("chosen", left=[], right=[], top=[], bottom=[])
    plot.quad("left", "right", "top", "bottom", source=chosen, fill_color=None, line_color=CHOSEN, line_width=2)
    arrow = _source("arrow", x_start=[], y_start=[], x_end=[], y_end=[])
    plot.add_layout(
        Arrow(  # type: ignore[call-arg]  # bokeh's types call the lines by other names than it does
            source=arrow,
            line_color=CHOSEN,
            line_width=2,
            end=VeeHead(size=11, fill_color=CHOSEN, line_color=CHOSEN),
        )
    )
    hosts = _source("hosts", y=[])
    plot.hspan("y", source=hosts, line_color="#7f8a97", line_width=1)
    attempts = _source("attempts", x=[])
    plot.vspan("x", source=attempts, line_color="#cc79a7", line_dash="dashed", line_width=2)
    moment = _source("moment", x=[])
    plot.vspan("x", source=moment, line_color=CHOSEN, line_width=1.5)
    deaths = _source("deaths", x=[], y=[])
    plot.scatter("x", "y", source=deaths, marker="x", size=13, line_color="#c8102e", line_width=3)
    plot.xaxis.axis_label = "seconds from the first op" if has_times else "the calls, in their order"
    if not has_times:
        plot.xaxis.ticker = []
    plot.yaxis.formatter = CustomJSTickFormatter(code="return rollcall.laneName(ticks, index)")
    plot.yaxis.ticker = whole_numbers()
    plot.grid.visible = False
    return plain(plot)


def _source(called: str, /, **columns: object) -> ColumnDataSource:
    return ColumnDataSource(data=columns, name=called)


def whole_numbers() -> BasicTicker:
    return BasicTicker(min_interval=1, num_minor_ticks=0)


def plain(plot: figure) -> figure:
    plot.background_fill_color = None
    plot.border_fill_color = None
    plot.outline_line_color = None
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    for axis in plot.axis:
        axis.major_label_text_font_size = axis.axis_label_text_font_size = "13px"
        axis.axis_label_text_font_style = "normal"
    for legend in plot.legend:
        legend.label_text_font_size = "13px"
    return plot


def shares(waits: Waits) -> figure:
    """Per rank: how long others waited for it, and it for others. Of many ranks, those that others waited for most."""
    worst = np.argsort(-np.maximum(waits.caused_s, waits.suffered_s), kind="stable")[:_MOST_BARS]
    ranks = sorted(worst.tolist()) if len(waits.caused_s) <= _MOST_BARS else worst.tolist()
    names = [f"rank {rank}" for rank in ranks]
    source = ColumnDataSource(
        {
            "name": names,
            "caused": waits.caused_s[ranks],
            "suffered": -waits.suffered_s[ranks],
            "suffered_s": waits.suffered_s[ranks],
        }
    )
    plot = figure(
        name="shares",
        height=max(160, 22 * len(names) + 80),
        sizing_mode="stretch_width",
        y_range=FactorRange(factors=list(reversed(names))),
        tools="save",
    )
    for column, colour, label in (("caused", WAIT, "made others wait"), ("suffered", COMPUTE, "waited itself")):
        plot.hbar(
            "name", right=column, height=0.7, source=source, fill_color=colour, line_color=None, legend_label=label
        )
    tooltips = [("", "@name: others waited @caused{0.000} s for it, it waited @suffered_s{0.000} s")]
    plot.add_tools(HoverTool(tooltips=tooltips))
    plot.xaxis.axis_label = "seconds, of all ranks together"
    plot.xaxis.formatter = CustomJSTickFormatter(code="return String(Math.abs(tick))")
    put_legend_above(plot)
    plot.ygrid.visible = False
    return plain(plot)


def put_legend_above(plot: figure) -> None:
    plot.add_layout(plot.legend[0], "above")
    plot.legend.orientation, plot.legend.border_line_color = "horizontal", None
    plot.legend.background_fill_alpha = 0


def what_if(waits: Waits) -> figure:
    """How long the run took, and how long if one rank had never been the last to arrive."""
    order = [
        rank
        for rank in np.argsort(-waits.saved_s, kind="stable")[:4].tolist()
        if waits.saved_s[rank] > _NOTABLE * waits.run_s
    ]
    names = ["as it was", *(f"rank {rank} on time" for rank in order)]
    took = [waits.run_s, *(waits.run_s - waits.saved_s[rank] for rank in order)]
    saved = [0.0, *(float(waits.saved_s[rank]) for rank in order)]
    percent = [f"−{100 * gain / waits.run_s:.0f} %" if gain and waits.run_s else "" for gain in saved]
    source = ColumnDataSource(
        {"name": names, "took": took, "saved": saved, "all": [waits.run_s] * len(names), "percent": percent}
    )
    plot = figure(
        name="what_if",
        height=36 * len(names) + 70,
        sizing_mode="stretch_width",
        x_range=Range1d(start=0, end=waits.run_s * 1.02),
        y_range=FactorRange(factors=list(reversed(names))),
        tools="save",
    )
    plot.hbar("name", right="took", height=0.6, source=source, fill_color=COMMUNICATE, line_color=None)
    plot.hbar(
        "name", left="took", right="all", height=0.6, source=source, fill_color=WAIT, fill_alpha=0.45, line_color=None
    )
    plot.text(
        "all",
        "name",
        "percent",
        source=source,
        text_baseline="middle",
        text_align="right",
        x_offset=-6,
        text_font_size="13px",
    )
    plot.add_tools(HoverTool(tooltips=[("", "@name: @took{0.000} s, saves @saved{0.000} s")]))
    plot.xaxis.axis_label = "seconds"
    plot.ygrid.visible = False
    return plain(plot)


def sizes(speeds: Sequence[Speed]) -> figure:
    """Size of ops against their bandwidth once all ranks were there."""
    plot = figure(
        name="sizes",
        height=340,
        sizing_mode="stretch_width",
        x_axis_type="log",
        y_axis_type="log",
        tools="pan,wheel_zoom,reset,save",
    )
    for number, op in enumerate(dict.fromkeys(point.op for point in speeds)):
        mine = [point for point in speeds if point.op == op]
        source = ColumnDataSource(
            {
                "size": [point.size_bytes for point in mine],
                "speed": [point.bytes_per_s / 1e6 for point in mine],
                "count": [point.count for point in mine],
                "op": [op] * len(mine),
            }
        )
        plot.scatter(
            "size", "speed", source=source, marker=_MARKERS[number % len(_MARKERS)], size=9, line_color=None,
            fill_color=OPS[number % len(OPS)], fill_alpha=0.85, legend_label=op,
        )  # fmt: skip
    plot.add_tools(HoverTool(tooltips=[("", "@op of @size{0,0} B: @speed{0,0.00} MB/s, @count ops")]))
    plot.xaxis.axis_label, plot.yaxis.axis_label = "bytes of an op", "MB/s, once all ranks were there"
    plot.add_layout(plot.legend[0], "right")
    plot.legend.border_line_color, plot.legend.background_fill_alpha = None, 0
    return plain(plot)

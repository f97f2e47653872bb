"""Pictures: one look for all experiments, colours that everybody can tell apart (Okabe and Ito's)."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#222222",
)  # fmt: skip
GREY = "#8A8A8A"
PALE = "#EDEDED"
OF_RANK = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, YELLOW, GREY)

_STYLE: Any = {
    "figure.facecolor": "white",
    "figure.dpi": 150,
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelcolor": "#444444",
    "axes.grid": False,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "lines.linewidth": 2.0,
}


def colour_of(rank: int) -> str:
    return OF_RANK[rank % len(OF_RANK)]


def check_installed() -> None:
    """Before anything is measured: a picture at the end must not fail for want of a package."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("pictures need matplotlib: pip install 'torch-rollcall[plots]', or use --no-picture")


def save(draw: Callable[[Any, "Figure"], None], results: Any, path: Path) -> None:
    """Let an experiment draw its results into a PNG."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        FigureCanvasAgg(figure)  # no window, no pyplot: it works without a display
        draw(results, figure)
        figure.savefig(path)


def plain_log(axes: "Axes") -> None:
    """A logarithmic scale with 0.1, 1, 10 in place of powers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")


def label_ranks(axes: "Axes", ranks: int) -> None:
    """One row per rank, rank 0 on top."""
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.set_ylim(ranks - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)

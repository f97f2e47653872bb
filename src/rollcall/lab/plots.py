"""Pictures: one style for all experiments, in Okabe and Ito's colours, which colour-blind readers can tell apart too.

matplotlib is an optional dependency, and is imported only when a picture is drawn.
"""

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
else:  # names for the annotations of experiments
    Axes = Figure = Any

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, BLACK = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#222222",
)  # fmt: skip
GREY = "#8A8A8A"
PALE = "#EDEDED"
_RANK_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, YELLOW, GREY)

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
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
}


def colour_of(rank: int) -> str:
    return _RANK_COLOURS[rank % len(_RANK_COLOURS)]


def check_installed(otherwise: str) -> None:
    """Called before anything is measured: a missing package must not be noticed at the end."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"pictures need matplotlib: pip install 'torch-rollcall[plots]', or {otherwise}")


def save(draw: Callable[[Any, Figure], None], results: Any, path: Path) -> None:
    """Let an experiment draw its results into a PNG."""
    import matplotlib.figure  # here, and below: an optional dependency
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=(9, 4.2), layout="constrained")
        FigureCanvasAgg(figure)  # no window, no pyplot: it works without a display
        draw(results, figure)
        figure.savefig(path)


def plain_log(axes: Axes) -> None:
    """A logarithmic scale labelled 0.1, 1, 10, not with powers of ten."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")


def add_arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, **style: Any) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, **style})


def add_box(axes: Axes, x: float, y: float, width: float, height: float, edge: str = "none", **style: Any) -> None:
    """A box with round corners; with an edge it is white, else pale."""
    from matplotlib.patches import FancyBboxPatch  # here: an optional dependency

    style = {"boxstyle": "round,pad=0.05", "facecolor": PALE if edge == "none" else "white", "linewidth": 2.5, **style}
    axes.add_patch(FancyBboxPatch((x, y), width, height, edgecolor=edge, **style))


def label_rows(axes: Axes, names: Iterable[str]) -> None:
    """One row per name, the first on top."""
    rows = [name.replace(", ", ",\n", 1) for name in names]
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def label_ranks(axes: Axes, ranks: int) -> None:
    label_rows(axes, [f"rank {rank}" for rank in range(ranks)])

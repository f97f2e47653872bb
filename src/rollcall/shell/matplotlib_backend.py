"""A backend of matplotlib for the ranks of a notebook: the figures of a cell are shown below it, by rank."""

import io
from collections.abc import Callable
from typing import Any

from matplotlib import pyplot
from matplotlib.backend_bases import FigureManagerBase as FigureManager
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

__all__ = ["FigureCanvas", "FigureManager", "show"]
send: Callable[[Any], None] = lambda _figure: None  # noqa: E731  (a session puts its own here)


def show(*_: object, **__: object) -> None:
    """Show all figures, and forget them: the next cell begins with none."""
    for number in pyplot.get_fignums():
        send(pyplot.figure(number))
    pyplot.close("all")


def picture_of(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    return file.getvalue()

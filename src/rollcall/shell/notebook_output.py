"""What a rank of a notebook shows besides text: pictures, tables, formulas. By Jupyter's protocol, without IPython."""

import base64
import contextlib
import sys
from typing import Any

PLAIN = "text/plain"
_METHODS = {
    "text/html": "_repr_html_",
    "text/markdown": "_repr_markdown_",
    "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_",
    "image/png": "_repr_png_",
    "image/jpeg": "_repr_jpeg_",
}


def bundle_of(value: object) -> dict[str, str]:
    """By format; more than plain text only if the value says so itself, or is a figure of matplotlib."""
    found = {kind: shown for kind, method in _METHODS.items() if (shown := _asked(value, method)) is not None}
    whole = _asked(value, "_repr_mimebundle_")
    found |= (whole[0] if isinstance(whole, tuple) else whole) or {}
    if is_figure(value):
        from rollcall.shell.matplotlib_backend import picture_of  # here: it imports matplotlib, which is there now

        found["image/png"] = picture_of(value)
    return {PLAIN: repr(value), **{kind: _text(shown) for kind, shown in found.items()}}


def is_figure(value: object) -> bool:
    figures = sys.modules.get("matplotlib.figure")
    return figures is not None and isinstance(value, figures.Figure)


def _asked(value: object, method: str) -> Any:
    """A class has these methods, too, but for its objects. What fails is not shown, as in a notebook."""
    ask = None if isinstance(value, type) else getattr(value, method, None)
    if callable(ask):
        with contextlib.suppress(Exception):
            shown = ask()
            return shown[0] if isinstance(shown, tuple) and method != "_repr_mimebundle_" else shown
    return None


def _text(shown: Any) -> str:
    return base64.b64encode(shown).decode() if isinstance(shown, bytes) else str(shown)

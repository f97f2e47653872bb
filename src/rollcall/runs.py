"""Where runs are kept. A module of its own, since everyone needs it, and nobody should import more for it."""

from collections.abc import Mapping
from pathlib import Path

WATCHED = "watched"  # in a run's folder: whoever watches the run touches it whenever it looks


def runs_home(environ: Mapping[str, str]) -> Path:
    """$ROLLCALL_DIR, or .rollcall in this folder; the runs are below it."""
    return Path(environ.get("ROLLCALL_DIR", ".rollcall")).absolute() / "runs"

"""`rollcall profile`: has ranks of a running job profile some of their steps."""

from pathlib import Path
from typing import Any

from rollcall.live import questions

_SAVE_S = 120.0  # for a rank to stop its profiler and to write what it has


def profile(folder: Path, ranks: tuple[int, ...] | None, steps: int, seconds: float) -> dict[int, dict[str, Any]]:
    """By rank: the file, relative to the run's folder, and how many steps are in it."""
    limit_s = seconds + _SAVE_S
    request = {"do": "profile", "steps": steps, "seconds": seconds, "limit_s": limit_s}
    return questions.ask_ranks(folder, ranks, request, limit_s + _SAVE_S)

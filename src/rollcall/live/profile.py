"""`rollcall profile`: has ranks of a running job profile some of their steps."""

from pathlib import Path
from typing import Any

from rollcall.errors import RankError
from rollcall.live import questions
from rollcall.runs import REQUESTS

_SAVE_S = 120.0  # for a rank to stop its profiler and to write what it has


def profile(folder: Path, ranks: tuple[int, ...] | None, steps: int, seconds: float) -> dict[int, dict[str, Any]]:
    """By rank: the file, relative to the run's folder, and how many steps are in it."""
    questions.check_has_launcher(folder)
    limit_s = seconds + _SAVE_S
    request = {"do": "profile", "steps": steps, "seconds": seconds, "limit_s": limit_s}
    with questions.asked(folder, REQUESTS, {"ranks": ranks, "request": request}) as question:
        answers = questions.answers_of(folder, question, limit_s + _SAVE_S)
    for rank, answer in sorted(answers.items()):
        if "error" in answer:
            raise RankError(f"rank {rank} {answer['error']}")
    return dict(sorted(answers.items()))

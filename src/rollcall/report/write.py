"""`rollcall report`: the files of a run → one page."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollcall.errors import UsageError
from rollcall.explain import costs
from rollcall.explain.evidence import View
from rollcall.explain.load import load
from rollcall.explain.verdict import explain_run
from rollcall.report import facts, logs, page
from rollcall.runs import read_facts, recorded_attempts
from rollcall.timeline.encode import encode
from rollcall.timeline.model import Attempt, timeline

FILE = "report.html"


def write(folder: Path, target: Path | None = None) -> Path:
    """Write the page of a run, into its folder or where it is asked for; returns where it is."""
    path = target or folder / FILE
    with _told_where(path):
        path.parent.stat()  # before seconds of work, not after them
    text = page.render(gather(folder))
    with _told_where(path):
        path.write_text(text, encoding="utf-8", errors="replace")
    return path


@contextlib.contextmanager
def _told_where(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}): choose another place with --out") from error


def gather(folder: Path, zero_ns: int | None = None) -> page.Content:
    """All attempts on the timeline; the verdict and all figures are of the last. `zero_ns` is where the time begins."""
    told = read_facts(folder)
    earlier = [Attempt.of(View(load(folder, number))) for number in recorded_attempts(folder)[:-1]]
    view = View(load(folder))  # where there are no rings, this says so
    drawn = timeline([*earlier, Attempt.of(view)], folder, told, zero_ns)
    lines, left_out = logs.read(folder)
    encoded = encode(drawn, told)
    return page.Content(
        name=view.run.name,
        judged=_judged(view, told),
        logs=lines,
        logs_left_out=left_out,
        wall_ns=drawn.wall_ns,
        lanes=max(len(encoded["told"]["lanes"]), 1),
        seconds=drawn.seconds,
        timeline=encoded,
        pictures=[(path.stem, path.read_bytes(), _words(path)) for path in sorted(folder.glob("pictures/*.png"))],
    )


def judge(folder: Path, newest: int | None) -> page.Judged:
    """The last attempt alone, without its timeline: all of it, or about so many of its newest records."""
    view = View(load(folder, newest=newest))
    return _judged(view, read_facts(folder))


def _judged(view: View, told: dict[str, Any]) -> page.Judged:
    explanation = explain_run(view)
    return page.Judged(
        outcome=explanation.outcome,
        findings=explanation.findings,
        problems=view.run.problems,
        facts=facts.tell(told, explanation),
        waits=view.waits,
        costs=costs.by_line(view),
        speeds=costs.by_size(view),
    )


def _words(picture: Path) -> str:
    """What stands beside a picture, where whoever drew it has left words."""
    words = picture.with_suffix(".txt")
    return words.read_text(encoding="utf-8", errors="replace").strip() if words.is_file() else ""

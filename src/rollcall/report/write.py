"""`rollcall report`: the files of a run → one page."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollcall.errors import UsageError
from rollcall.explain.evidence import View
from rollcall.explain.load import load
from rollcall.explain.verdict import explained
from rollcall.report import facts, logs, matrix, page, traffic
from rollcall.timeline import model, scene

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
    told = facts.read(folder)
    numbers = attempts_of(folder)
    acts = [scene.Act.of(number, View(load(folder, number))) for number in numbers[:-1]]
    run = load(folder)  # where there are no rings, this says so
    last = scene.Act.of(run.attempt, View(run))
    staged = scene.stage([*acts, last], folder, told, zero_ns)
    lines, left_out = logs.read(folder)
    packed = scene.to_page(staged, told)
    return page.Content(
        name=run.name,
        judged=_judged(last.view, last.bars, told),
        logs=lines,
        logs_left_out=left_out,
        wall_ns=staged.wall_ns,
        lanes=max(len(packed["told"]["lanes"]), 1),
        seconds=staged.seconds,
        scene=packed,
        pictures=[(path.stem, path.read_bytes(), _words(path)) for path in sorted(folder.glob("pictures/*.png"))],
    )


def judge(folder: Path, newest: int | None) -> page.Judged:
    """The last attempt alone, without its timeline: all of it, or about so many of its newest records."""
    view = View(load(folder, newest=newest))
    return _judged(view, model.draw(view), facts.read(folder))


def _judged(view: View, bars: model.Bars, told: dict[str, Any]) -> page.Judged:
    explanation = explained(view)
    begin_ns = int(bars.entered_ns.min()) if len(bars.row) else 0
    return page.Judged(
        outcome=explanation.outcome,
        findings=explanation.findings,
        problems=view.run.problems,
        facts=facts.tell(told, explanation),
        waiting=matrix.count(view, bars, begin_ns),
        lines=traffic.by_site(view, bars),
        points=traffic.by_size(view, bars),
    )


def _words(picture: Path) -> str:
    """What stands beside a picture, where whoever drew it has left words."""
    words = picture.with_suffix(".txt")
    return words.read_text(encoding="utf-8", errors="replace").strip() if words.is_file() else ""


def attempts_of(folder: Path) -> list[int]:
    names = [path.name.removeprefix("attempt-") for path in (folder / "rings").glob("attempt-*")]
    return sorted(int(name) for name in names if name.isdecimal())

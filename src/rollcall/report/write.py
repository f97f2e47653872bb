"""`rollcall report`: the files of a run → one page."""

from pathlib import Path

from rollcall.errors import UsageError
from rollcall.explain.load import load
from rollcall.explain.verdict import explained
from rollcall.explain.view import View
from rollcall.report import facts, logs, matrix, page, scene, traffic

FILE = "report.html"


def write(folder: Path, target: Path | None = None) -> Path:
    """Write the page of a run, into its folder or where it is asked for; returns where it is."""
    path = target or folder / FILE
    text = page.render(gather(folder))
    try:
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}): choose another place with --out") from error
    return path


def gather(folder: Path, zero_ns: int | None = None) -> page.Content:
    """All attempts on the timeline; the verdict and all figures are of the last. `zero_ns` is where the time begins."""
    told = facts.read(folder)
    numbers = attempts_of(folder)
    acts = [scene.Act.of(number, View(load(folder, number))) for number in numbers[:-1]]
    run = load(folder)  # where there are no rings, this says so
    view = View(run)
    last = scene.Act.of(run.attempt, view)
    staged = scene.stage([*acts, last], folder, told, zero_ns)
    explanation = explained(view)
    begin_ns = int(last.bars.entered_ns.min()) if len(last.bars.row) else 0
    lines, left_out = logs.read(folder)
    packed = scene.to_page(staged, told)
    return page.Content(
        name=run.name,
        outcome=explanation.outcome,
        findings=explanation.findings,
        problems=run.problems,
        facts=facts.tell(told, explanation),
        logs=lines,
        logs_left_out=left_out,
        wall_ns=staged.wall_ns,
        lanes=max(len(packed["told"]["lanes"]), 1),
        seconds=staged.seconds,
        scene=packed,
        waiting=matrix.count(view, last.bars, begin_ns),
        lines=traffic.by_site(view, last.bars),
        points=traffic.by_size(view, last.bars),
        pictures=[(path.stem, path.read_bytes(), _words(path)) for path in sorted(folder.glob("pictures/*.png"))],
    )


def _words(picture: Path) -> str:
    """What stands beside a picture, where whoever drew it has left words."""
    words = picture.with_suffix(".txt")
    return words.read_text(encoding="utf-8", errors="replace").strip() if words.is_file() else ""


def attempts_of(folder: Path) -> list[int]:
    names = [path.name.removeprefix("attempt-") for path in (folder / "rings").glob("attempt-*")]
    return sorted(int(name) for name in names if name.isdecimal())

"""`rollcall report`: the files of a run → one page."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollcall.errors import cannot_write
from rollcall.explain import costs
from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.load import load
from rollcall.explain.verdict import explain_run
from rollcall.report import facts, logs, page, rehearsed
from rollcall.runs import read_facts, recorded_attempts
from rollcall.timeline.encode import encode
from rollcall.timeline.model import Attempt, timeline

FILE = "report.html"


def write(folder: Path, target: Path | None = None) -> Path:
    """Write the page of a run, into its folder or to `target`; returns its path."""
    path = target or (folder if folder.is_dir() else folder.parent) / FILE  # a dump is a file
    with _as_usage_error(path):
        path.parent.stat()  # fail before the work, not after it
    text = page.render(gather(folder))
    with _as_usage_error(path):
        path.write_text(text, encoding="utf-8", errors="replace")
    return path


@contextlib.contextmanager
def _as_usage_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def gather(folder: Path, zero_ns: int | None = None) -> page.Content:
    """All attempts on the timeline; verdict and figures of the last. `zero_ns`: where the timeline begins."""
    run_facts = read_facts(folder)
    earlier = [Attempt.of(Evidence(load(folder, number))) for number in recorded_attempts(folder)[:-1]]
    evidence = Evidence(load(folder))  # UsageError if there are no rings
    drawn = timeline([*earlier, Attempt.of(evidence)], folder, run_facts, zero_ns)
    lines, left_out = logs.read(folder)
    encoded = encode(drawn, run_facts)
    return page.Content(
        name=evidence.run.name,
        results=_results(evidence, run_facts, rehearsed.read(folder)),
        logs=lines,
        logs_left_out=left_out,
        wall_ns=drawn.wall_ns,
        lanes=max(len(encoded["meaning"]["lanes"]), 1),
        seconds=drawn.seconds,
        timeline=encoded,
        pictures=[(path.stem, path.read_bytes(), _caption(path)) for path in sorted(folder.glob("pictures/*.png"))],
    )


def results_of(folder: Path, newest: int | None) -> page.Results:
    """The verdict and figures of the last attempt: of all records, or of about `newest`."""
    evidence = Evidence(load(folder, newest=newest))
    return _results(evidence, read_facts(folder))


def _results(
    evidence: Evidence, run_facts: dict[str, Any], found: rehearsed.RehearsedResults | None = None
) -> page.Results:
    explanation = explain_run(evidence)
    return page.Results(
        outcome=explanation.outcome,
        verdict=explanation.verdict,
        findings=explanation.findings,
        problems=explanation.run.problems,
        facts=facts.lines(run_facts, explanation),
        waits=evidence.waits,
        costs=costs.by_line(evidence),
        speeds=costs.by_size(evidence),
        rehearsed=found,
    )


def _caption(picture: Path) -> str:
    """The text beside a picture, if there is a file with it."""
    text = picture.with_suffix(".txt")
    return text.read_text(encoding="utf-8", errors="replace").strip() if text.is_file() else ""

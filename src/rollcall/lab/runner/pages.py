"""python -m rollcall.lab.runner.pages [--from-results] [NAME …]

Runs experiments, and writes their pages in docs/lab: question, picture, verdict, claims, code. The end of a page, what
to try next, is written by hand and stays. With --from-results it runs nothing, and writes the pages from the results of
the last runs. Call it in the folder that has docs/.
"""

import ast
import inspect
import json
import platform
import sys
import tempfile
import textwrap
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from rollcall.errors import UsageError, say
from rollcall.lab import NAMES, plots
from rollcall.lab.experiment import Claim, Experiment, LabSettings, Results, VerdictTable, load, path_of
from rollcall.lab.runner import perform, worlds
from rollcall.units import plural

FOLDER = Path("docs/lab")
_FROM_RESULTS = "--from-results"
_BY_HAND = "## What to try next"


def write(name: str, from_results: bool) -> None:
    """One page, its picture, and the results from which both are made."""
    experiment = load(name)
    path = FOLDER / "results" / f"{name}.json"
    if not from_results:
        settings = perform.check(experiment, LabSettings(perform.DEFAULT_RANKS, experiment.trials))
        with tempfile.TemporaryDirectory() as folder:
            results = perform.collect(experiment, settings, Path(folder))
        run = {"ranks": settings.world_size, "trials": settings.trials, "machine": _machine(), "results": results}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_without_paths(run), separators=(",", ":")) + "\n")
    run = json.loads(path.read_text())
    plots.save(experiment.draw, run["results"], FOLDER / f"{name}.png")
    page = FOLDER / f"{name}.md"
    page.write_text(make_page(experiment, run, page.read_text() if page.exists() else ""))


def make_page(experiment: Experiment, run: dict[str, Any], page_before: str) -> str:
    """The page of an experiment, from the results of a run."""
    verdict = experiment.judge(run["results"])
    _, _, about = experiment.about.partition("\n\n")
    where = f"{plural(run['ranks'], 'rank')}, {plural(run['trials'], 'trial')}, on {run['machine']}"
    parts = [
        f"# {experiment.name}",
        about,
        f"```\n{experiment.about.splitlines()[0]}\n```",
        f"![{experiment.question}]({experiment.name}.png)",
        f"## Result\n\n**{verdict.sentence[0].upper()}{verdict.sentence[1:]}.**",
        "\n".join(map(_claim, verdict.claims)),
        *map(_table, verdict.tables),
        f"<sub>{where}. The numbers are from one run: yours will differ, the claims should hold.</sub>",
        "## The code",
        *map(_code, experiment.code_on_page),
        f"The whole file, with its judging and drawing:"
        f" [{experiment.name}.py](../../src/rollcall/lab/{path_of(experiment.name)}).",
        _BY_HAND + (page_before.partition(_BY_HAND)[2] or "\n"),
    ]
    return "\n\n".join(parts)


def _claim(claim: Claim) -> str:
    return f"- {'✓' if claim.holds else '✗' if claim.is_invariant else '–'} {claim.text}"


def _table(table: VerdictTable) -> str:
    def row(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    head = [row(table.columns), "|" + " --- |" * len(table.columns)]
    return f"{table.title}:\n\n" + "\n".join([*head, *map(row, table.rows)])


def _code(function: Callable[..., Any]) -> str:
    """A function as it is in the file, with its docstring as text above it."""
    lines = textwrap.dedent(inspect.getsource(function)).rstrip().splitlines()
    definition = ast.parse("\n".join(lines)).body[0]
    assert isinstance(definition, ast.FunctionDef | ast.ClassDef)
    text = ast.get_docstring(definition)
    if text is not None:
        docstring = definition.body[0]
        after = docstring.end_lineno or docstring.lineno
        while after < len(lines) and not lines[after].strip():
            after += 1
        lines[docstring.lineno - 1 : after] = []
    source = "\n".join(lines)
    return f"{text}\n\n```python\n{source}\n```" if text else f"```python\n{source}\n```"


def _machine() -> str:
    memory_gb = psutil.virtual_memory().total / (1 << 30)
    cores = psutil.cpu_count() or 1
    return f"{cores} cores, {memory_gb:.0f} GiB, torch {version('torch')}, Python {platform.python_version()}"


def _without_paths(value: Results) -> Results:
    """Removes the folders of this machine from the text."""
    if isinstance(value, dict):
        return {key: _without_paths(each) for key, each in value.items() if key != "folder"}
    if isinstance(value, list):
        return [_without_paths(each) for each in value]
    if isinstance(value, str) and "/rollcall/lab/" in value:
        return value.rpartition("/rollcall/")[2]
    return value


def main(arguments: list[str]) -> None:
    if not FOLDER.parent.is_dir():
        raise UsageError("there is no docs/ here: run it in the root of the repository")
    from_results = _FROM_RESULTS in arguments
    names = [name for name in arguments if name != _FROM_RESULTS] or list(NAMES)
    FOLDER.mkdir(exist_ok=True)
    if not from_results:
        worlds.start_server()
    for name in names:
        print(name, flush=True)
        write(name, from_results)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        say(error)
        sys.exit(error.exit_code)

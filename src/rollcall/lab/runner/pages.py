"""python -m rollcall.lab.runner.pages [NAME …]

Writes docs/lab/: a page for every experiment from a run of it, here and now: question, code, picture, numbers,
claims. Run it in the folder that has docs/. With --from-results the pages are written anew from the last runs' own
results.
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
from rollcall.lab.experiment import Claim, Experiment, Results, Settings, Table, Verdict, load, question_of
from rollcall.lab.runner import perform, worlds
from rollcall.lab.runner.perform import DEFAULT_RANKS

FOLDER = Path("docs/lab")
_FROM_RESULTS = "--from-results"


def write(name: str, from_results: bool) -> None:
    """One page, its picture, and the results that both were made from."""
    experiment = load(name)
    kept = FOLDER / "results" / f"{name}.json"
    if from_results:
        told = json.loads(kept.read_text())
    else:
        settings = perform.check(experiment, Settings(DEFAULT_RANKS, experiment.trials))
        with tempfile.TemporaryDirectory() as folder:
            results = perform.collect(experiment, settings, Path(folder))
        told = {"ranks": settings.world_size, "trials": settings.trials, "machine": _machine(), "results": results}
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(_without_paths(told), separators=(",", ":")) + "\n")
        told = json.loads(kept.read_text())
    plots.save(experiment.draw, told["results"], FOLDER / f"{name}.png")
    (FOLDER / f"{name}.md").write_text(page(experiment, told))


def page(experiment: Experiment, told: dict[str, Any]) -> str:
    """The page of an experiment, from what was measured."""
    verdict = experiment.judge(told["results"])
    _, _, about = experiment.about.partition("\n\n")
    where = f"{told['ranks']} ranks, {told['trials']} trial{'s' * (told['trials'] > 1)}, on {told['machine']}"
    parts = [
        f"# {experiment.name}",
        about,
        f"```\nrollcall lab {experiment.name}\n{experiment.about.splitlines()[0]}\n```",
        f"![{experiment.question}]({experiment.name}.png)",
        f"## What came out\n\n{_sentence(verdict)}",
        "\n".join(map(_claim, verdict.claims)),
        *map(_table, verdict.tables),
        f"<sub>{where}. These numbers are of one run; yours will differ, and the claims should not.</sub>",
        "## The code",
        *map(_walk, experiment.walk),
        f"All of it: [{experiment.name}.py](../../src/rollcall/lab/{experiment.name}.py), "
        f"which also says how it is judged and drawn.",
        "## What to try next\n\n" + "\n".join(f"- {each}" for each in experiment.next),
    ]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """The list of all of them."""
    rows = "\n".join(f"| [{name}]({name}.md) | {question_of(name)} |" for name in NAMES)
    return f"""# The lab

Sixteen experiments on real ranks of this machine: each asks a question, measures the answer over many trials, draws it,
and states what held. Each is one file that can be read from top to bottom.

```
rollcall lab                  # lists them
rollcall lab barrier          # one; -n, --trials, --backend, --virtual-hosts, --json
rollcall lab all              # all of them, in a few minutes
python -m rollcall.lab.experiments.ring   # the same; also torchrun --nproc-per-node 4 -m rollcall.lab.experiments.ring
```

| experiment | question |
| --- | --- |
{rows}

A claim with ✓ held in the run behind the page. A claim that must hold on every machine is an invariant: where one is
violated, the command ends with exit code 1. A claim that was only looked for, and not seen, is told as that, with exit
code 0. Bad usage is exit code 2. What was measured stays in the run's folder: `lab.json`, and `pictures/`. In the code,
`track` counts trials for the progress bar, and does nothing else.

## Afterwards

Every experiment is a run: `rollcall runs` lists it, `rollcall report` shows its picture and verdict with the timeline
and the words of its ranks, and `rollcall explain` says who waited for whom. A recorder would be measured with what it
records, so an experiment measures without one; then the same ranks meet once more, for one trial that is recorded.
Where each arm has a world of its own, since it may crash or hang, all arms are recorded; the report shows the one that
shows most, and `rollcall report .rollcall/runs/latest/arms/recv-recv` another (of arms on virtual hosts, `runs/latest`
below that).

[By hand](by-hand.md): the same programs node by node, with the flags of the notes that this began with.
"""


def _sentence(verdict: Verdict) -> str:
    return f"**{verdict.sentence[0].upper()}{verdict.sentence[1:]}.**"


def _claim(claim: Claim) -> str:
    return f"- {'✓' if claim.holds else '✗' if claim.is_invariant else '–'} {claim.text}"


def _table(table: Table) -> str:
    def row(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    head = [row(table.columns), "|" + " --- |" * len(table.columns)]
    return f"{table.title}:\n\n" + "\n".join([*head, *map(row, table.rows)])


def _walk(function: Callable[..., Any]) -> str:
    """A function as it is in the file, with what it says of itself above it."""
    lines = textwrap.dedent(inspect.getsource(function)).rstrip().splitlines()
    definition = ast.parse("\n".join(lines)).body[0]
    assert isinstance(definition, ast.FunctionDef | ast.ClassDef)
    words = ast.get_docstring(definition)
    if words is not None:
        said = definition.body[0]
        after = said.end_lineno or said.lineno
        while after < len(lines) and not lines[after].strip():
            after += 1
        lines[said.lineno - 1 : after] = []
    source = "\n".join(lines)
    return f"{words}\n\n```python\n{source}\n```" if words else f"```python\n{source}\n```"


def _machine() -> str:
    memory_gb = psutil.virtual_memory().total / (1 << 30)
    cores = psutil.cpu_count() or 1
    return f"{cores} cores, {memory_gb:.0f} GiB, torch {version('torch')}, Python {platform.python_version()}"


def _without_paths(told: Results) -> Results:
    """Folders of this machine have no place in a page."""
    if isinstance(told, dict):
        return {key: _without_paths(value) for key, value in told.items() if key != "folder"}
    if isinstance(told, list):
        return [_without_paths(value) for value in told]
    if isinstance(told, str) and "/rollcall/lab/" in told:
        return told.rpartition("/rollcall/")[2]
    return told


def main(words: list[str]) -> None:
    if not FOLDER.parent.is_dir():
        raise UsageError("there is no docs/ here: run it in the root of the repository")
    from_results = _FROM_RESULTS in words
    names = [word for word in words if word != _FROM_RESULTS] or list(NAMES)
    FOLDER.mkdir(exist_ok=True)
    if not from_results:
        worlds.warm_up()
    for name in names:
        print(name, flush=True)
        write(name, from_results)
    (FOLDER / "README.md").write_text(index())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        say(error)
        sys.exit(error.exit_code)

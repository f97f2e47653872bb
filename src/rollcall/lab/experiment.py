"""What an experiment is, and what comes out of it: plain values."""

import ast
import difflib
import importlib
import inspect
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rollcall.errors import UsageError
from rollcall.lab import EXPERIMENTS, NAMES
from rollcall.lab.plots import Figure

# What the ranks return, as JSON holds it: a list with a value per rank; or, by the name of a case, how it ended.
Results = Any


@dataclass(frozen=True)
class Claim:
    """A statement about the results. An invariant must hold on every machine; others usually do."""

    text: str
    holds: bool
    is_invariant: bool


def always(text: str, holds: bool) -> Claim:
    """A claim that must hold on every machine: if it does not, the exit code is 1."""
    return Claim(text, holds, is_invariant=True)


def usually(text: str, holds: bool) -> Claim:
    """A claim that chance or another machine may refute: then it is reported as not seen, with exit code 0."""
    return Claim(text, holds, is_invariant=False)


@dataclass(frozen=True)
class VerdictTable:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> VerdictTable:
    """A table of anything that can be printed."""
    return VerdictTable(title, tuple(columns), tuple(tuple(map(str, row)) for row in rows))


@dataclass(frozen=True)
class Verdict:
    """The answer: a sentence, its numbers, and which claims held."""

    sentence: str
    numbers: dict[str, Any]
    claims: tuple[Claim, ...]
    tables: tuple[VerdictTable, ...] = ()

    @property
    def violations(self) -> tuple[str, ...]:
        return tuple(claim.text for claim in self.claims if claim.is_invariant and not claim.holds)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "violations": list(self.violations)}


@dataclass(frozen=True)
class Case:
    """One of several programs that an experiment compares, each run on new ranks.

    It counts as hung after `limit_s`, and is ended; if it may fail, that is `limit_s` without progress on any rank.
    """

    name: str
    about: str
    limit_s: float = 60.0
    may_fail: bool = False  # failing or hanging is what the experiment shows
    virtual_hosts: int | None = None
    link: str | None = None


@dataclass(frozen=True)
class LabSettings:
    """What the user chose. `ranks` is per host, as in `rollcall run`."""

    ranks: int
    trials: int
    backend: str | None = None
    virtual_hosts: int | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of this experiment alone, by parameter
    as_json: bool = False
    with_picture: bool = True

    @property
    def world_size(self) -> int:
        return self.ranks * (self.virtual_hosts or 1)


@dataclass(frozen=True)
class Experiment:
    """What an experiment's file defines, under the name EXPERIMENT."""

    measure: Callable[..., Any]  # what every rank does; returns plain values
    judge: Callable[[Results], Verdict]  # of the results of all ranks
    draw: Callable[[Results, Figure], None]  # a picture of the same results
    trials: int
    code_on_page: tuple[Callable[..., Any], ...]  # what its page shows, in the order in which to read it
    least_ranks: int = 2
    cases: tuple[Case, ...] = ()  # where each needs ranks of its own: it may crash, hang, or run on other hosts
    once: Callable[..., None] | None = None  # prints lines of its own when it is run once, node by node
    reported_case: str = ""  # the run's report shows the recording of this case; by default, of the last
    reported_with: dict[str, Any] = field(default_factory=dict)  # options of the recorded trial, not the user's
    name: str = ""
    about: str = ""  # the docstring of its file: its command, then the question, then the rest

    @property
    def question(self) -> str:
        return _first_question(self.about)

    def case(self, name: str) -> Case:
        for case in self.cases:
            if case.name == name:
                return case
        known = ", ".join(repr(case.name) for case in self.cases) or "none"
        raise UsageError(f"{self.name} has no case {name!r}: it has {known}")

    def check_options(self, options: Iterable[str]) -> None:
        """Refuse an option that belongs to another experiment."""
        for option in options:
            if not self.takes(option):
                raise UsageError(f"--{option} is not for {self.name}: leave it out")

    def takes(self, option: str) -> bool:
        functions = [self.measure, *([self.once] if self.once else [])]
        return any(option in inspect.signature(function).parameters for function in functions)


def check_name(name: str) -> None:
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, 1)
        hint = f"did you mean {near[0]}?" if near else "`rollcall lab` lists them"
        raise UsageError(f"the lab has no experiment {name!r}: {hint}")


def path_of(name: str) -> str:
    """Returns a path in the folder of the lab."""
    return f"experiments/{EXPERIMENTS[name]}/{name}.py"


def source_of(name: str) -> str:
    return (Path(__file__).parent / path_of(name)).read_text()


def question_of(name: str) -> str:
    """Read from the file: importing it would import torch."""
    return _first_question(ast.get_docstring(ast.parse(source_of(name))) or "")


def _first_question(about: str) -> str:
    question = about.splitlines()[2].partition("?")[0]
    return f"{question[0].lower()}{question[1:]}?"


def load(name: str) -> Experiment:
    check_name(name)
    module = importlib.import_module(f"rollcall.lab.experiments.{EXPERIMENTS[name]}.{name}")
    experiment: Experiment = module.EXPERIMENT
    return replace(experiment, name=name, about=(module.__doc__ or "").strip())


def median_of_slowest(times_by_rank: Iterable[Sequence[float]]) -> float:
    """A collective takes as long as its slowest rank: of each trial the longest time, and of these the median."""
    return float(statistics.median(max(trial) for trial in zip(*times_by_rank, strict=True)))


def compared(before: float, after: float) -> str:
    """How much less the second is than the first, or more."""
    share = 1 - after / before
    return f"{abs(share):.0%} {'less' if share >= 0 else 'more'}"


def found_kind(ending: dict[str, Any]) -> str:
    """The kind of problem that explain found in the recording of a case; "nothing" if it found none."""
    return str(ending["verdict"]["kind"]) if ending["verdict"] else "nothing"

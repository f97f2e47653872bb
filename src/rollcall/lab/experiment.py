"""What an experiment is, and what comes out of it: plain values."""

import ast
import difflib
import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcall.errors import UsageError
from rollcall.lab import NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What the ranks brought back, as JSON has it: a list with a value per rank, or, by arm, how its world ended.
Results = Any


@dataclass(frozen=True)
class Claim:
    """Something that should be so. An invariant must be so on every machine; others are only looked for."""

    text: str
    holds: bool
    is_invariant: bool = True


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Verdict:
    """The answer: in a sentence, with its numbers, and what of it held."""

    sentence: str
    numbers: dict[str, Any]
    claims: tuple[Claim, ...]
    tables: tuple[Table, ...] = ()

    @property
    def violations(self) -> tuple[str, ...]:
        return tuple(claim.text for claim in self.claims if claim.is_invariant and not claim.holds)

    @property
    def exit_code(self) -> int:
        """0: it was measured, whatever came out; 1: something that must hold did not."""
        return 1 if self.violations else 0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "violations": list(self.violations)}


@dataclass(frozen=True)
class Arm:
    """One of the worlds of an experiment that needs several. After `limit_s` it is taken to hang, and ended.

    Where it may hang, time counts from the last op that any rank has entered.
    """

    name: str
    about: str
    limit_s: float = 60.0
    may_fail: bool = False  # that it fails or hangs is what we want to see; others must come to their end
    virtual_hosts: int | None = None
    link: str | None = None


@dataclass(frozen=True)
class Settings:
    """What the user chose. `ranks` is per host, as in `rollcall run`."""

    ranks: int
    trials: int
    backend: str | None = None
    virtual_hosts: int | None = None
    extras: dict[str, Any] = field(default_factory=dict)  # options of this experiment alone, by parameter

    @property
    def world_size(self) -> int:
        return self.ranks * (self.virtual_hosts or 1)


@dataclass(frozen=True)
class Experiment:
    """An experiment's file, read."""

    name: str
    question: str
    about: str
    measure: Callable[..., Any]
    judge: Callable[[Results], Verdict]
    draw: Callable[[Results, "Figure"], None]
    trials: int
    least_ranks: int
    walk: tuple[Callable[..., Any], ...]
    next: tuple[str, ...]
    arms: tuple[Arm, ...]
    once: Callable[..., None] | None
    shown_arm: str  # the one of whose world the run keeps the recording
    shown_with: dict[str, Any]  # what the recorded trial takes in place of the user's options

    @property
    def module(self) -> str:
        return f"rollcall.lab.experiments.{self.name}"

    def arm(self, name: str) -> Arm:
        for arm in self.arms:
            if arm.name == name:
                return arm
        known = ", ".join(repr(arm.name) for arm in self.arms) or "none"
        raise UsageError(f"{self.name} has no arm {name!r}: it has {known}")

    def takes(self, parameter: str) -> bool:
        """Whether an option of single experiments is for this one."""
        functions = [self.measure, *([self.once] if self.once else [])]
        return any(parameter in inspect.signature(function).parameters for function in functions)


def check_name(name: str) -> None:
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, 1)
        hint = f"did you mean {near[0]}?" if near else "`rollcall lab` lists them"
        raise UsageError(f"the lab has no experiment {name!r}: {hint}")


def source_of(name: str) -> str:
    return (Path(__file__).parent / "experiments" / f"{name}.py").read_text()


def question_of(name: str) -> str:
    """Read from the file: importing it would import torch."""
    for node in ast.parse(source_of(name)).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "QUESTION":
            return str(ast.literal_eval(node.value))
    raise LookupError(f"{name}.py has no QUESTION")


def load(name: str) -> Experiment:
    check_name(name)
    module = importlib.import_module(f"rollcall.lab.experiments.{name}")
    arms = getattr(module, "ARMS", ())
    return Experiment(
        name=name,
        question=module.QUESTION,
        about=(module.__doc__ or "").strip(),
        measure=module.measure,
        judge=module.judge,
        draw=module.draw,
        trials=module.TRIALS,
        least_ranks=getattr(module, "LEAST_RANKS", 2),
        walk=module.WALK,
        next=module.NEXT,
        arms=arms,
        once=getattr(module, "once", None),
        shown_arm=getattr(module, "SHOWN_ARM", arms[-1].name if arms else ""),
        shown_with=getattr(module, "SHOWN_WITH", {}),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Of a sorted or unsorted list, the nearest rank; 0.5 is the median."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))] if ordered else math.nan


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


def less(before: float, after: float) -> str:
    """By how much one is less than the other; or more."""
    share = 1 - after / before
    return f"{abs(share):.0%} {'less' if share >= 0 else 'more'}"


def in_time(seconds: float) -> str:
    """Seconds as people read them."""
    if math.isnan(seconds):
        return "—"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}" if abs(seconds) / size < 1000 else f"{seconds / size:,.0f} {unit}"
    return f"{seconds * 1e6:.2g} µs"


def in_bytes(size_bytes: float) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size_bytes >= size:
            return f"{size_bytes / size:.3g} {unit}"
    return f"{size_bytes:.0f} B"

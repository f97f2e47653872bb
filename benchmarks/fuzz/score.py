"""Compares what explain says with what is known, and prints a confusion matrix."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fuzz.guilt import Mutant, Verdict
from benchmarks.fuzz.kept import Program
from benchmarks.fuzz.worlds import Ended

from rollcall.explain import verdict as explaining
from rollcall.explain.checks import FAULT

NOTHING = Verdict("nothing")


@dataclass(frozen=True)
class Result:
    """One run and its verdict."""

    seed: int
    mutation: str  # empty: the program is correct
    outcome: str
    got: Verdict
    mutant: Mutant | None = None
    right: tuple[bool, bool, bool] = (True, True, True)  # kind, ranks, line

    @property
    def wanted(self) -> str:
        return self.mutant.guilt.kinds[0] if self.mutant else "nothing"

    @property
    def is_right(self) -> bool:
        return all(self.right)

    def in_words(self) -> str:
        if self.mutant is None:
            said = "not blamed" if self.is_right else f"blamed as {_in_words(self.got)}: {self.got.message}"
            return f"seed {self.seed}, correct, {self.outcome}: {said}"
        guilt = self.mutant.guilt
        wanted = f"{' or '.join(guilt.kinds)} of rank {self.mutant.guilty_rank} at {sorted(guilt.lines)}"
        return f"seed {self.seed}, {self.mutation}, {self.outcome}: wanted {wanted}, got {_in_words(self.got)}"


def _in_words(got: Verdict) -> str:
    return f"{got.kind} {list(got.ranks)} at {list(got.lines)}"


def explain(folder: Path, script: Path) -> Verdict:
    """The verdict of a run; of an explanation that fails, its error."""
    try:
        told = explaining.to_json(explaining.explain(folder))
    except Exception as error:
        return Verdict(f"{type(error).__name__} in explain", message=str(error))
    if fault := fault_in(told):
        return Verdict("fault in explain", message=fault)
    found = told["verdict"] or next(iter(told["findings"]), None)
    if found is None:
        return NOTHING
    lines = [site.rpartition(":") for site in found["sites"]]
    mine = tuple(int(number) for file, _, number in lines if file == str(script))
    return Verdict(found["kind"], tuple(found["ranks"]), mine, found["message"])


def fault_in(told: dict[str, Any]) -> str:
    """The sentence about a check that failed; empty if none did."""
    return next((problem for problem in told["problems"] if problem.startswith(FAULT)), "")


def judge(program: Program, ended: Ended) -> Result:
    got, mutant = explain(ended.job.folder, ended.job.script), program.mutant
    if mutant is None:
        return Result(program.seed, "", ended.outcome, got, None, (got == NOTHING,) * 3)
    has_ended = ended.exit_codes.get(mutant.guilty_rank) == 0
    return Result(program.seed, mutant.mutation, ended.outcome, got, mutant, mutant.guilt.accepts(got, has_ended))


def is_seen(mutant: Mutant, ended: Ended, right_prints: dict[int, str] | None) -> bool:
    """Whether a mutant does anything wrong: one that ends well with the right results may not."""
    return mutant.guilt.is_always_seen or ended.outcome != "ok" or ended.printed != right_prints


def summary(mutants: Sequence[Result]) -> str:
    named = sum(result.is_right for result in mutants)
    kind, ranks, line = (sum(result.right[place] for result in mutants) for place in range(3))
    share = 100 * named / max(len(mutants), 1)
    return (
        f"{named} of {len(mutants)} bugs named with kind, ranks and line ({share:.1f} %);"
        f" kind {kind}, ranks {ranks}, line {line}"
    )


def matrix(mutants: Sequence[Result]) -> str:
    """Per kind: how many, how many named with all, and what was said instead."""
    lines = [f"{'planted':24} {'bugs':>5} {'named':>6}  said instead"]
    for kind, group in _grouped(mutants, lambda result: result.wanted):
        wrong = Counter(_what_is_wrong(result) for result in group if not result.is_right)
        said = ", ".join(f"{what} {count}" for what, count in wrong.most_common())
        lines.append(f"{_counts(kind, group)}  {said}".rstrip())
    return "\n".join(lines)


def _what_is_wrong(result: Result) -> str:
    is_kind, are_ranks, is_line = result.right
    if not is_kind:
        return result.got.kind
    return f"{result.got.kind}{'' if are_ranks else ' (other ranks)'}{'' if is_line else ' (other line)'}"


def by_mutation(mutants: Sequence[Result]) -> str:
    lines = [_counts(name, group) for name, group in _grouped(mutants, lambda result: result.mutation)]
    return "\n".join([f"{'mutation':24} {'bugs':>5} {'named':>6}", *lines])


def _counts(name: str, group: Sequence[Result]) -> str:
    return f"{name:24} {len(group):5} {sum(result.is_right for result in group):6}"


def _grouped(results: Sequence[Result], key: Callable[[Result], str]) -> list[tuple[str, list[Result]]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return sorted(groups.items())

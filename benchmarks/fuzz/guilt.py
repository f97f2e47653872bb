"""What is known of a planted bug: which kinds, ranks and lines are a right answer.

A kind is accepted if it is an honest name of what was planted. A rank that leaves out a call is a missing rank; that
the next call, which meets the others' by chance, has another shape or dtype, is no answer. Where only two ranks take
part, nobody can say which of them is wrong: naming both is right, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.fuzz.script import Call, Line, Script

Ranks = frozenset[int]
_CIRCLES = ("cross-group-deadlock", "p2p-deadlock")


@dataclass(frozen=True)
class Verdict:
    """What explain says of a run."""

    kind: str
    ranks: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()
    message: str = ""


@dataclass(frozen=True)
class Guilt:
    """What a right verdict says."""

    kinds: tuple[str, ...]  # the best name first
    ranks: tuple[Ranks, ...]
    lines: frozenset[int]
    is_always_seen: bool = True  # else it is left out if the program ends well with the same results

    def accepts(self, verdict: Verdict, has_ended: bool) -> tuple[bool, bool, bool]:
        """Whether the kind, the ranks, and one of the lines are right. A rank that left out a call and has ended since
        may be named for its end; of a circle, all ranks are named."""
        kinds = (*self.kinds, "rank-exited-early") if has_ended and "missing-rank" in self.kinds else self.kinds
        named = frozenset(verdict.ranks)
        are_right = named in self.ranks or (verdict.kind in _CIRCLES and named >= self.ranks[0])
        return verdict.kind in kinds, are_right, bool(self.lines & set(verdict.lines))


@dataclass(frozen=True)
class Mutant:
    """A program with a bug on one rank."""

    script: Script
    guilty_rank: int
    guilt: Guilt
    mutation: str = ""


def mutant(
    script: Script, line: Line, rank: int, kinds: Iterable[str], ranks: Iterable[Ranks], is_always_seen: bool = True
) -> Mutant:
    """Its lines are those that the mutation marked, and those of calls that belong to the line it changed."""
    related = line.call.related if line.call else ()
    also = {number for number, each in enumerate(script.lines, 1) if each.call and each.call.name in related}
    return Mutant(script, rank, Guilt(tuple(kinds), tuple(ranks), script.guilty_lines() | also, is_always_seen))


def alone_or_pair(call: Call, rank: int) -> list[Ranks]:
    """The guilty rank; or both ranks, if there are no others to compare with."""
    group, partner = call.group_of(rank), call.partners.get(rank)
    both = {rank, partner} if partner is not None else set(group) if len(group) == 2 else {rank}
    return [frozenset({rank}), frozenset(both)]

"""All ranks look at the same question together: what one of them finds wrong ends all of them, with one sentence."""

from collections.abc import Sequence
from typing import NoReturn, TypeVar

import torch.distributed as dist

from rollcall.errors import RollcallError, UsageError
from rollcall.protocol.rank_ranges import list_of
from rollcall.world import World

T = TypeVar("T")


def gather(world: World, mine: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """What every rank says, in rank order."""
    if world.size == 1:
        return [mine]
    everyone: list[T | None] = [None] * world.size
    dist.all_gather_object(everyone, mine, group)
    return everyone  # type: ignore[return-value]


def tell(world: World, mine: T, group: dist.ProcessGroup | None = None) -> T:
    """What rank 0 says, on every rank."""
    if world.size == 1:
        return mine
    said = [mine]
    dist.broadcast_object_list(said, src=0, group=group)
    return said[0]


def refuse_together(world: World, problem: str | None, error: type[RollcallError] = UsageError) -> None:
    """End all ranks if one of them has a problem. Rank 0 says it, and names those who have it."""
    problems = gather(world, problem)
    if any(problems):
        raise_together(world, _in_one_sentence(problems), error)


def raise_together(world: World, sentence: str, error: type[RollcallError] = UsageError) -> NoReturn:
    """Raise on every rank what every rank knows; only rank 0 prints it."""
    raised = error(sentence)
    raised.quiet = not world.is_first
    raise raised


def compare(world: World, what: str, mine: str, remedy: str) -> None:
    """End all ranks if they do not say the same, and name who says what."""
    said = gather(world, mine)
    if len(set(said)) > 1:
        raise_together(world, f"the ranks disagree on {what}: {_who_says_what(said)}: {remedy}")


def _in_one_sentence(problems: Sequence[str | None]) -> str:
    by_problem: dict[str, list[int]] = {}
    for rank, problem in enumerate(problems):
        if problem:
            by_problem.setdefault(problem, []).append(rank)
    if len(problems) == 1:
        return next(iter(by_problem))
    return "; ".join(f"{_name(ranks)}: {problem}" for problem, ranks in by_problem.items())


def _who_says_what(said: Sequence[str]) -> str:
    by_word: dict[str, list[int]] = {}
    for rank, word in enumerate(said):
        by_word.setdefault(word, []).append(rank)
    return "; ".join(f"{_name(ranks)} {'have' if len(ranks) > 1 else 'has'} {word}" for word, ranks in by_word.items())


def _name(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {list_of(ranks)}"

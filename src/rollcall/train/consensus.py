"""All ranks check the same thing together: a problem on one rank ends all ranks with the same message."""

from collections.abc import Hashable, Sequence
from typing import NoReturn, TypeVar

import torch.distributed as dist

from rollcall.errors import RollcallError, UsageError
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.world import World

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


def gather(world: World, value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """The values of all ranks, in rank order."""
    if world.size == 1:
        return [value]
    values: list[T | None] = [None] * world.size
    dist.all_gather_object(values, value, group)
    return values  # type: ignore[return-value]


def broadcast(world: World, value: T, group: dist.ProcessGroup | None = None) -> T:
    """The value of rank 0, on every rank."""
    if world.size == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0, group=group)
    return values[0]


def fail_if_any(world: World, problem: str | None) -> None:
    """End all ranks if one of them has a problem; the message names the ranks that have it."""
    problems = gather(world, problem)
    if not any(problems):
        return
    if world.size == 1:
        fail_on_all(world, str(problem))
    sentences = [f"{ranks_in_words(ranks)}: {text}" for text, ranks in _ranks_by_value(problems).items() if text]
    fail_on_all(world, "; ".join(sentences))


def fail_on_all(world: World, message: str, error: type[RollcallError] = UsageError) -> NoReturn:
    """Raise an error that all ranks know of; only rank 0 prints it."""
    raised = error(message)
    raised.quiet = not world.is_first
    raise raised


def require_equal(world: World, what: str, value: str, remedy: str) -> None:
    """End all ranks if their values differ; the message says which ranks have which."""
    found = _ranks_by_value(gather(world, value))
    if len(found) > 1:
        who = [f"{ranks_in_words(ranks)} {'have' if len(ranks) > 1 else 'has'} {text}" for text, ranks in found.items()]
        fail_on_all(world, f"the ranks disagree on {what}: {'; '.join(who)}: {remedy}")


def _ranks_by_value(values: Sequence[H]) -> dict[H, list[int]]:
    ranks: dict[H, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    return ranks

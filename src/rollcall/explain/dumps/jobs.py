"""Whether all dumps are of one job, and what its groups are."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rollcall.errors import UsageError
from rollcall.explain.dumps.entries import Dump

Group = tuple[str, tuple[int, ...]]  # name and ranks


@dataclass(frozen=True)
class Job:
    world_size: int
    groups: list[Group]
    numbers: list[list[int]]  # per dump: from the numbers of its groups to places in `groups`


def newest_of_each_rank(dumps: Iterable[Dump]) -> list[Dump]:
    """One dump per rank: a process may write several, also as pickle and as JSON, and one of each backend. UsageError
    if they are of two processes."""
    kept: dict[int, Dump] = {}
    for dump in dumps:
        other = kept.get(dump.rank)
        if other is not None and dump.backend == other.backend and not _is_one_process(dump, other):
            one, two = (each.path.name for each in (other, dump))
            if one == two:
                one, two = (f"{each.path.parent.name}/{each.path.name}" for each in (other, dump))
            raise mixed(f"{one} and {two} are both of rank {dump.rank}, and differ")
        if other is None or _tells_more(dump, other):
            kept[dump.rank] = dump
    return [kept[rank] for rank in sorted(kept)]


def mixed(how: str) -> UsageError:
    return UsageError(f"these dumps are of more than one job: {how}; keep those of one job in a folder of their own")


def _is_one_process(one: Dump, other: Dump) -> bool:
    """Ops of the same number were made at the same time."""
    _, mine, theirs = np.intersect1d(one.records["number"], other.records["number"], return_indices=True)
    return bool((one.records["entered_ns"][mine] == other.records["entered_ns"][theirs]).all())


def _tells_more(dump: Dump, other: Dump) -> bool:
    """That of the GPUs; then the later one; of two at the same time, the one with lines of the program, which JSON
    lacks."""
    mine, theirs = ((each.backend != "gloo", each.last_ns, len(each.sites)) for each in (dump, other))
    return mine > theirs


def one_job(dumps: list[Dump]) -> Job:
    """UsageError if the dumps contradict each other."""
    known = [dump for dump in dumps if dump.world_size]
    for dump in known:
        if dump.world_size != known[0].world_size:
            raise mixed(f"{_world(known[0])}, {_world(dump)}")
    told = known[0].world_size if known else 0
    listed = [rank for ranks in {ranks for dump in dumps for _, ranks in dump.groups} for rank in ranks]
    world_size = told or max([dump.rank for dump in dumps] + listed, default=-1) + 1
    for dump in dumps:
        if dump.rank >= world_size:
            raise mixed(
                f"{dump.path.name} is of rank {dump.rank}, and the world of {known[0].path.name} has {told} ranks"
            )
    return _with_groups(dumps, world_size)


def _world(dump: Dump) -> str:
    return f"{dump.path.name} has a world of {dump.world_size} ranks"


def _with_groups(dumps: list[Dump], world_size: int) -> Job:
    """A group without ranks has those that used it; the world is the group with the name that torch gives it."""
    users: dict[str, set[int]] = {}
    for dump in dumps:
        for name, ranks in dump.groups:
            if not ranks:
                users.setdefault(name, set()).add(dump.rank)
    places: dict[Group, int] = {}
    numbers = []
    for dump in dumps:
        mine = []
        for name, ranks in dump.groups:
            all_ranks = tuple(range(world_size)) if name == "0" else tuple(sorted(users.get(name, ())))
            mine.append(places.setdefault((name, ranks or all_ranks), len(places)))
        numbers.append(mine)
    return Job(world_size, list(places), numbers)

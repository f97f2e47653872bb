"""Kinds of ranks: ranks that make the same calls. For --classes, chooses ranks to run until every kind is found.

Ranks with the same GPU number on different hosts form a column. These ranks run first: all of the first and of the last
host, the first rank of the second host, and ranks near to a number that the script compares something with. If two
neighbours in a column make different calls, the rank in the middle runs too, until the border is found. A rank that did
not run is between two of its column that make the same calls, and is assumed to make them, too.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.loading.load import Run
from rollcall.explain.loading.table import Group
from rollcall.record import ring_format
from rollcall.rehearse.settings import RehearsalSettings

Kinds = tuple[tuple[int, ...], ...]
Calls = Mapping[int, bytes]  # by rank: the same if two ranks make the same calls


def kinds_of(calls: Calls) -> Kinds:
    """The largest first."""
    merged: dict[bytes, list[int]] = defaultdict(list)
    for rank, made in calls.items():
        merged[made].append(rank)
    return tuple(sorted((tuple(sorted(each)) for each in merged.values()), key=lambda kind: (-len(kind), kind)))


def calls_of(run: Run) -> dict[int, bytes]:
    """By rank: its ops, their lines and sizes, the shape of their groups, and how far away the partners are."""
    table = run.table
    shapes: dict[tuple[int, ...], int] = {}
    shape_of = np.array([shapes.setdefault(_shape(group), len(shapes)) for group in table.names.groups])
    of_group, distances = shape_of[table.group], _distances(run)
    found = {}
    for rank, (start, end) in table.spans.items():
        columns = (table.op, table.site, table.size_bytes, table.reduce, of_group, distances)
        found[rank] = b"".join(column[start:end].tobytes() for column in columns)
    return found


def _shape(group: Group) -> tuple[int, ...]:
    """The same for groups of one form: the ranks of one host, every eighth rank."""
    return tuple(int(each) for each in np.diff(group.ranks))


def _distances(run: Run) -> NDArray[np.int64]:
    """Of messages: the distance to the partner in the group, in a circle. Roots of collectives are left out: they are
    the same for all ranks of a call, or explain reports it."""
    table = run.table
    found = np.zeros(len(table.op), dtype=np.int64)
    rows = np.flatnonzero(np.isin(table.op, ring_format.POINT_TO_POINT))
    for number in np.unique(table.group[rows]):
        members = table.names.groups[number].ranks
        place = np.full(max(*members, run.world_size, 0) + 1, -1)
        place[list(members)] = range(len(members))
        mine = rows[table.group[rows] == number]
        away = place[table.peer[mine]] - place[table.rank[mine]]
        found[mine] = away % max(len(members), 1)
    return found


def first_ranks(settings: RehearsalSettings, script: Path) -> list[int]:
    world, each = settings.world_size, settings.gpus_per_host
    chosen = set(range(min(each + 1, world))) | set(range(max(world - each, 0), world))
    for number in _compared_numbers(script):
        near = (number - 1, number, number + 1, number * each, world - number)
        chosen.update(rank for rank in near if 0 <= rank < world)
    return sorted(chosen)


def _compared_numbers(script: Path) -> set[int]:
    """Whole numbers beside a comparison, such as `rank >= 900`; also as text, such as `os.environ["RANK"] == "3"`."""
    try:
        tree = ast.parse(script.read_bytes())
    except SyntaxError:
        return set()  # the ranks will say so
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found.update(number for part in ast.walk(node) if (number := _number(part)) is not None)
    return found


def _number(part: ast.AST) -> int | None:
    value = part.value if isinstance(part, ast.Constant) else None
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value)
    return value if type(value) is int else None


def more_ranks(run: Run, settings: RehearsalSettings) -> list[int]:
    """The ranks to run next; none if every kind is found."""
    calls = calls_of(run)
    return sorted(between(calls, settings) or _partners(run, calls, settings))


def between(calls: Calls, settings: RehearsalSettings) -> set[int]:
    """Ranks between two that make other calls. Where one column has a border, the others may have one: the ranks on
    both sides of it run in all columns."""
    each = settings.gpus_per_host
    columns = [sorted(rank for rank in calls if rank % each == column) for column in range(each)]
    gaps = [pair for ranks in columns for pair in pairwise(ranks) if calls[pair[0]] != calls[pair[1]]]
    borders = {after // each for before, after in gaps if after - before == each}
    beside = {rank for host in borders for rank in range((host - 1) * each, (host + 1) * each)}
    if left := {rank for rank in beside if rank < settings.world_size and rank not in calls}:
        return left
    wide = [(before, after) for before, after in gaps if after - before > each]
    # One column after the other: the next ones need not search for borders that the first has found.
    return {
        before + (after - before) // each // 2 * each for before, after in wide if before % each == wide[0][0] % each
    }


def _partners(run: Run, calls: Calls, settings: RehearsalSettings) -> set[int]:
    """The partners of the first rank of each kind. Whether their calls match is known only if they run, too."""
    kinds = spread(calls, settings)
    kind_of = {rank: number for number, kind in enumerate(kinds) for rank in kind}
    chosen: set[int] = set()
    for kind in kinds:
        rank = next(each for each in kind if each in calls)
        chosen.update(_peers(run, rank, kind_of))
        for group in _groups(run, rank):
            others = [each for each in group.ranks if each != rank]
            if others and not any(each in calls for each in others):
                chosen.add(min(others, key=lambda each: (each < rank, each)))
    return {each for each in chosen if each not in calls and each < settings.world_size}


def _peers(run: Run, rank: int, kind_of: Mapping[int, int]) -> Iterator[int]:
    """The first and the last of each kind that it exchanges messages with."""
    table = run.table
    rows = slice(*table.spans[rank])
    peers = table.peer[rows][np.isin(table.op[rows], ring_format.POINT_TO_POINT)]
    by_kind: dict[int, list[int]] = defaultdict(list)
    for peer in sorted({int(each) for each in peers} & kind_of.keys()):
        by_kind[kind_of[peer]].append(peer)
    for alike in by_kind.values():
        yield from (alike[0], alike[-1])


def _groups(run: Run, rank: int) -> list[Group]:
    table = run.table
    return [table.names.groups[number] for number in np.unique(table.group[slice(*table.spans[rank])])]


def spread(calls: Calls, settings: RehearsalSettings) -> Kinds:
    """The kinds of all ranks: one that did not run is of the kind of those beside it."""
    return kinds_of({rank: calls[stand_in(rank, calls, settings)] for rank in range(settings.world_size)})


def stand_in(rank: int, ran: Mapping[int, object], settings: RehearsalSettings) -> int:
    """The rank that ran for this one: itself, or the nearest before it in its column."""
    while rank not in ran:
        rank -= settings.gpus_per_host
    return rank

"""all_to_all: what each rank sends to each other one, and what that one expects."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.loading.table import Table
from rollcall.explain.matching import Call, Calls
from rollcall.record import ring_format


def sizes_of(signature: dict[str, Any], members: int) -> tuple[list[Any], list[Any]]:
    """What a rank sends to, and what it expects of, each member of its group: rows of a tensor, or shapes in a list."""
    splits = signature.get("splits") or []
    if not splits or splits[0] != "single":
        return (splits[1], splits[2]) if len(splits) > 2 else ([], [])
    shapes = signature.get("shapes") or [[0]]
    given = splits[2] or [shapes[0][0] // members] * members
    taken = splits[1] or [splits[3][0] // members] * members
    return given, taken


def that_match(table: Table, calls: Calls, candidates: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The candidates that are all_to_alls from one line whose ranks differ in nothing but sizes, each of which is what
    the other side expects. Programs with random splits make thousands of them: nothing else is looked at."""
    is_one = table.op == ring_format.OP["all_to_all"]
    found = candidates & calls.has_all & ~calls.any(~is_one)
    if found.any():
        found &= ~calls.differ_in(table.reduce, table.peer, table.site)
    for number in np.flatnonzero(found):
        found[number] = _matches(table, calls.rows_of(int(number)))
    return found


def _matches(table: Table, rows: NDArray[np.int32]) -> bool:
    members = table.names.groups[table.group[rows[0]]].ranks
    if tuple(table.rank[rows].tolist()) != members:
        return False
    signatures = table.names.signatures.all_of(table.signature[rows].tolist())
    if not all(signatures) or any(_kind(each) != _kind(signatures[0]) for each in signatures):
        return False
    sizes = [sizes_of(each, len(members)) for each in signatures]
    return [tuple(given) for given, _ in sizes] == list(zip(*(taken for _, taken in sizes), strict=False))


def _kind(signature: dict[str, Any]) -> tuple[Any, Any]:
    """What ranks must have alike, whatever they send."""
    return signature.get("dtypes"), signature.get("objects")


def in_words(call: Call, transfers: list[tuple[int, int]]) -> str:
    """`rank 0 sends 3 to rank 9, which expects 4`; of many such pairs of sender and receiver, a few."""
    members = list(call.group.ranks)
    words = []
    for sender, receiver in transfers[:_FEW]:
        given, _ = sizes_of(call.ops[sender].signature, len(members))
        _, taken = sizes_of(call.ops[receiver].signature, len(members))
        sent, expected = given[members.index(receiver)], taken[members.index(sender)]
        words.append(f"rank {sender} sends {sent} to rank {receiver}, which expects {expected}")
    more = [f"{len(transfers) - _FEW} more such"] if len(transfers) > _FEW else []
    return "; ".join([*words, *more])


_FEW = 3  # transfers that fit into a sentence

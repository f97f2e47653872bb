"""Which ranks took something from a collective that is not what all ranks together have given."""

from typing import Any

from rollcall.rehearse.collectives import Table, digest, message_from, result_for
from rollcall.rehearse.combine import Given, Key

# Each rank gets something else from these; of the others, one result is that of all ranks.
_DIFFERENT = {"scatter", "reduce_scatter", "all_to_all", "all_to_all_single", "reduce", "gather"}


def find(results: dict[int, Any]) -> tuple[Table, list[int]]:
    """What each rank gave, by op; and the ranks to run again, with that."""
    known: Table = {}
    for result in results.values():
        for key, given in result.gave.items():
            place = 0 if Key(*key).source >= 0 else result.took[key][0]
            known.setdefault(Key(*key), {})[place] = Given(*given)
    expected: dict[Any, str] = {}
    stale = [rank for rank, result in results.items() if not _is_right(result, known, expected)]
    return known, sorted(stale)


def _is_right(result: Any, known: Table, expected: dict[Any, str]) -> bool:
    return all(_expect(key, took, result, known, expected) == took[2] for key, took in result.took.items())


def _expect(key: Any, took: tuple[int, int, str], result: Any, known: Table, expected: dict[Any, str]) -> str:
    index, size, _ = took
    if Key(*key).source >= 0:
        return digest(message_from(known.get(Key(*key), {})))
    given = Given(*result.gave[key])
    is_complete = len(known[Key(*key)]) == size  # else the result depends on who is missing
    place: Any = (key, index) if given.op in _DIFFERENT or not is_complete else (key, given.reduce, given.root)
    if place not in expected:
        expected[place] = digest(result_for(known[Key(*key)], given, index, size))
    return expected[place]

"""Which ranks took something from a collective that is not what all ranks together have given."""

from typing import Any

from rollcall.rehearse.combine import Given, Key
from rollcall.rehearse.rank.collectives import Table, digest, message_from, result_for

# Each rank gets something else from these; of the others, one result is that of all ranks.
_DIFFERENT = {"scatter", "reduce_scatter", "all_to_all", "all_to_all_single", "reduce", "gather"}


def given(results: dict[int, Any]) -> Table:
    """What each rank gave, by op."""
    known: Table = {}
    for result in results.values():
        for key, its in result.gave.items():
            place = 0 if Key(*key).source >= 0 else result.took[key][0]
            known.setdefault(Key(*key), {})[place] = Given(*its)
    return known


def find(results: dict[int, Any]) -> list[int]:
    """The ranks to run again."""
    known = given(results)
    expected: dict[Any, str] = {}
    return sorted(rank for rank, result in results.items() if not is_right(result, known, expected))


def wait_for_messages(results: dict[int, Any], ranks: list[int]) -> bool:
    """Whether one of these ranks did not get a message that it received: what it sends itself may depend on it."""
    known = given(results)
    return any(
        Key(*key).source >= 0 and digest(message_from(known.get(Key(*key), {}))) != took[2]
        for rank in ranks
        for key, took in results[rank].took.items()
    )


def is_right(result: Any, known: Table, expected: dict[Any, str] | None = None) -> bool:
    """`expected` keeps results that are the same for several ranks."""
    expected = {} if expected is None else expected
    return all(_expect(key, took, result, known, expected) == took[2] for key, took in result.took.items())


def _expect(key: Any, took: tuple[int, int, str], result: Any, known: Table, expected: dict[Any, str]) -> str:
    index, size, _ = took
    if Key(*key).source >= 0:
        return digest(message_from(known.get(Key(*key), {})))
    given = Given(*result.gave[key])
    all_given = known[Key(*key)]
    # Where a rank is missing, or on another way, each takes it to give what it gives itself.
    is_whole = len(all_given) == size and all(each.op == given.op for each in all_given.values())
    place: Any = (key, given.reduce, given.root) if is_whole and given.op not in _DIFFERENT else (key, index)
    if place not in expected:
        expected[place] = digest(result_for(known[Key(*key)], given, index, size))
    return expected[place]

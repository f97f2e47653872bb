"""Which ranks received values from a collective that do not follow from what all ranks contributed."""

import math
from collections.abc import Collection, Iterator
from typing import Any

from rollcall.rehearse.collective_results import Given, Key, Took
from rollcall.rehearse.rank.collectives import Table, digest, message_from, result_for

# Each rank receives its own result from these. All other ops have one result for all ranks.
_DIFFERENT = {"scatter", "reduce_scatter", "all_to_all", "all_to_all_single", "reduce", "gather"}
Wrong = dict[int, dict[Key, Took]]  # by rank and op


def given(results: dict[int, Any]) -> Table:
    """What each rank contributed, by op."""
    known: Table = {}
    for result in results.values():
        for key, its in result.gave.items():
            place = 0 if Key(*key).source >= 0 else result.took[key][0]
            known.setdefault(Key(*key), {})[place] = Given(*its)
    return known


def find(results: dict[int, Any], known: Table, unstable: Collection[Key] = ()) -> Wrong:
    """By rank: the wrong values that it received. Ops in `unstable` are left out: their values differ each time."""
    expected: dict[Any, str] = {}
    found = {rank: dict(_wrong(result, known, unstable, expected)) for rank, result in sorted(results.items())}
    return {rank: wrong for rank, wrong in found.items() if wrong}


def find_unstable(before: Any, after: Any) -> set[Key]:
    """Ops to which a rank contributed another value than in its last pass, though it had received the same until then:
    a time, a process number, a random number."""
    took = {key: Took(*its) for key, its in after.took.items()}
    parted = min((its.record for key, its in took.items() if its[2] != before.took.get(key, its)[2]), default=math.inf)

    def is_same_until(key: Any) -> bool:
        return took[key].record <= parted if key in took else parted == math.inf  # a send has no place of its own

    return {
        Key(*key)
        for key, its in after.gave.items()
        if key in before.gave and its != before.gave[key] and is_same_until(key)
    }


def wait_for_messages(results: dict[int, Any], known: Table, ranks: Collection[int]) -> bool:
    """Whether one of these ranks lacks the right content of a message: what it sends itself may depend on it."""
    return any(
        Key(*key).source >= 0 and digest(message_from(known.get(Key(*key), {}))) != took[2]
        for rank in ranks
        for key, took in results[rank].took.items()
    )


def failed_on_a_guess(results: dict[int, Any], known: Table) -> list[int]:
    """Ranks that failed after an op that other ranks did not reach, if ranks were stopped after --steps: what the
    others would have contributed is not known, so it is not known either what these ranks would have done next."""
    if not any(result.is_cut for result in results.values()):
        return []
    return [rank for rank, result in sorted(results.items()) if result.exit_code and any(_guessed(result, known))]


def guessed_before_failing(results: dict[int, Any], known: Table) -> tuple[str, ...]:
    """Of each rank that failed: the last line at which it received a value that depends on ranks that did not run."""
    failed = (result for result in results.values() if result.exit_code and not result.is_cut)
    last = (max(_guessed(result, known), key=lambda took: took.record, default=None) for result in failed)
    return tuple(sorted({took.place for took in last if took is not None}))


def _guessed(result: Any, known: Table) -> Iterator[Took]:
    """What a rank received from collectives that others did not reach: they are assumed to contribute the same."""
    for key, took in result.took.items():
        if Key(*key).source < 0 and len(known[Key(*key)]) < Took(*took).size:
            yield Took(*took)


def is_right(result: Any, known: Table, unstable: Collection[Key] = ()) -> bool:
    return not any(_wrong(result, known, unstable, {}))


def _wrong(
    result: Any, known: Table, unstable: Collection[Key], expected: dict[Any, str]
) -> Iterator[tuple[Key, Took]]:
    """`expected` keeps results that are the same for several ranks."""
    for key, took in result.took.items():
        if Key(*key) not in unstable and _expect(key, Took(*took), result, known, expected) != took[2]:
            yield Key(*key), Took(*took)


def _expect(key: Any, took: Took, result: Any, known: Table, expected: dict[Any, str]) -> str:
    if Key(*key).source >= 0:
        return digest(message_from(known.get(Key(*key), {})))
    given = Given(*result.gave[key])
    all_given = known[Key(*key)]
    # If a rank is missing, or makes another call, it is assumed to contribute what this rank contributes.
    is_whole = len(all_given) == took.size and all(each.op == given.op for each in all_given.values())
    place: Any = (key, given.reduce, given.root) if is_whole and given.op not in _DIFFERENT else (key, took.member)
    if place not in expected:
        expected[place] = digest(result_for(all_given, given, took.member, took.size))
    return expected[place]

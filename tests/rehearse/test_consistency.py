"""Which ranks have to run again, and which values nobody can know."""

from dataclasses import dataclass, field
from typing import Any

import torch

from rollcall.rehearse import consistency
from rollcall.rehearse.collective_results import Given, Key, Took, pack
from rollcall.rehearse.rank.collectives import digest

FIRST, SECOND = Key("world", 1), Key("world", 2)


@dataclass
class Result:
    """What a rank gave and took."""

    gave: dict[Any, Any] = field(default_factory=dict)
    took: dict[Any, Any] = field(default_factory=dict)
    exit_code: int = 0
    is_cut: bool = False


def rank(member: int, *values: tuple[int, int]) -> Result:
    """A rank of two that gave and took these numbers, in this order, in sums."""
    result = Result()
    for number, (gave, took) in enumerate(values, 1):
        key = Key("world", number)
        result.gave[key] = Given("all_reduce", (pack(torch.tensor([gave])),), "SUM")
        result.took[key] = Took(member, 2, digest((torch.tensor([took]),)), number, f"train.py:{number}")
    return result


def found(results: dict[int, Any], *unstable: Key) -> consistency.Wrong:
    return consistency.find(results, consistency.given(results), unstable)


def test_a_rank_that_took_the_sum_of_all_is_right() -> None:
    assert found({0: rank(0, (1, 3)), 1: rank(1, (2, 3))}) == {}


def test_a_rank_that_took_another_value_runs_again() -> None:
    wrong = found({0: rank(0, (1, 2)), 1: rank(1, (2, 3))})
    assert {number: [took.place for took in ops.values()] for number, ops in wrong.items()} == {0: ["train.py:1"]}


def test_what_differs_though_nothing_before_it_did_is_unstable() -> None:
    assert consistency.find_unstable(rank(0, (1, 3), (7, 9)), rank(0, (1, 3), (8, 9))) == {SECOND}


def test_what_differs_after_a_rank_was_told_something_else_is_not_unstable() -> None:
    assert consistency.find_unstable(rank(0, (1, 2), (7, 9)), rank(0, (1, 3), (8, 9))) == set()


def test_an_op_that_gives_something_else_each_time_needs_no_further_pass() -> None:
    assert found({0: rank(0, (1, 2)), 1: rank(1, (2, 3))}, FIRST) == {}


def test_a_failure_after_a_value_of_ranks_that_are_not_here_may_depend_on_it() -> None:
    """Rank 1 of two was not rehearsed: rank 0 took its own value for that of both. Its last such line is told."""
    failed, well = rank(0, (1, 2), (3, 6)), rank(0, (1, 2))
    failed.exit_code = 1
    assert consistency.guessed_before_failing({0: failed}, consistency.given({0: failed})) == ("train.py:2",)
    assert consistency.guessed_before_failing({0: well}, consistency.given({0: well})) == ()


def test_a_failure_where_all_ranks_are_here_depends_on_none_that_is_not() -> None:
    both = {0: rank(0, (1, 3)), 1: rank(1, (2, 3))}
    both[0].exit_code = 1
    assert consistency.guessed_before_failing(both, consistency.given(both)) == ()

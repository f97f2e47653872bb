"""Ranks as people write them."""

import pytest

from rollcall.errors import UsageError
from rollcall.protocol.rank_ranges import list_of, ranks_in_words, read_ranks


def test_neighbours_become_a_range() -> None:
    """Whatever their order."""
    assert list_of([3, 0, 1, 2, 7]) == "0-3,7"
    assert list_of([]) == ""


def test_one_rank_is_a_rank_and_several_are_ranks() -> None:
    """As in a sentence."""
    assert ranks_in_words([3]) == "rank 3"
    assert ranks_in_words({2, 0, 1, 5}) == "ranks 0-2,5"


def test_of_very_many_ranges_the_first_few_are_told() -> None:
    """A sentence stays a sentence."""
    assert ranks_in_words(range(0, 100, 2)) == "ranks 0,2,4,6,8,10,12,14 and more, 50 in all"
    assert ranks_in_words(range(10_000)) == "ranks 0-9999"


def test_rank_lists() -> None:
    """`0`, `0,2-3` and `all` are understood, other words are not."""
    assert read_ranks("--rank", "0") == (0,)
    assert read_ranks("--rank", "0,2-3") == (0, 2, 3)
    assert read_ranks("--rank", "all") is None
    with pytest.raises(UsageError, match=r"^--rank one does not name ranks: use 0, or 0,2-3, or all$"):
        read_ranks("--rank", "one")

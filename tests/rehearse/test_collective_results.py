"""What each rank gets is what the ranks have given together."""

import pytest
import torch

from rollcall.rehearse.collective_results import Given, combine, pack, unpack
from rollcall.rehearse.rank.collectives import message_from, result_for


def given(op: str, *values: object, reduce: str = "", root: int = -1, splits: tuple[int, ...] = ()) -> Given:
    return Given(op, tuple(pack(torch.tensor(value)) for value in values), reduce, root, splits)


@pytest.mark.parametrize(
    ("reduce", "expected"), [("SUM", [5, 9]), ("MIN", [1, 2]), ("MAX", [4, 7]), ("PRODUCT", [4, 14]), ("BOR", [5, 7])]
)
def test_all_reduce(reduce: str, expected: list[int]) -> None:
    both = [given("all_reduce", [1, 2], reduce=reduce), given("all_reduce", [4, 7], reduce=reduce)]
    assert combine(both, 0)[0].tolist() == expected  # type: ignore[index]


def test_broadcast_gives_what_the_root_has() -> None:
    both = [given("broadcast", [1], root=1), given("broadcast", [2], root=1)]
    assert combine(both, 0)[0].tolist() == [2]  # type: ignore[index]


def test_all_gather_keeps_the_order_of_ranks() -> None:
    assert [each.item() for each in combine([given("all_gather", 5), given("all_gather", 6)], 1) or ()] == [5, 6]


def test_reduce_scatter_gives_each_rank_its_part() -> None:
    both = [given("reduce_scatter", [1, 2], reduce="SUM"), given("reduce_scatter", [10, 20], reduce="SUM")]
    assert combine(both, 1)[0].tolist() == [22]  # type: ignore[index]


def test_all_to_all_follows_the_splits_of_each_sender() -> None:
    both = [given("all_to_all_single", [1, 2, 3], splits=(1, 2)), given("all_to_all_single", [4, 5], splits=(2, 0))]
    assert [combine(both, rank)[0].tolist() for rank in (0, 1)] == [[1, 4, 5], [2, 3]]  # type: ignore[index]


def test_scatter_takes_the_part_of_the_root() -> None:
    both = [given("scatter", root=1), given("scatter", [1], [2], root=1)]
    assert combine(both, 0)[0].tolist() == [1]  # type: ignore[index]


def test_one_unknown_makes_the_result_unknown() -> None:
    assert combine([given("all_reduce", [1], reduce="SUM"), Given("all_reduce", None, "SUM")], 0) is None


def test_ranks_that_disagree_get_nothing_that_is_known() -> None:
    assert combine([given("all_reduce", [1], reduce="SUM"), given("all_reduce", [1, 2], reduce="SUM")], 0) is None


def test_a_rank_that_gave_nothing_yet_is_taken_to_give_the_same() -> None:
    mine = given("all_reduce", [3], reduce="SUM")
    assert result_for({}, mine, 0, 4)[0].tolist() == [12]  # type: ignore[index]


def test_a_message_is_known_when_its_sender_has_sent_it() -> None:
    assert message_from({}) is None
    assert message_from({0: given("message", [7], root=0)})[0].tolist() == [7]  # type: ignore[index]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.int64, torch.float32])
def test_data_of_any_dtype_comes_back_as_it_was(dtype: torch.dtype) -> None:
    data = torch.tensor([[1, 0], [1, 1]]).to(dtype)
    assert torch.equal(unpack(pack(data)), data)
    assert unpack(pack(data)).dtype is dtype

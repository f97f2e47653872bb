"""Dumps of simulated trainings of many nccl ranks, in versions, forms and names of all sorts."""

import pytest

from .nccl_jobs import BUGS, judge

_SEEDS = range(6)


def test_correct_trainings_are_not_blamed() -> None:
    said = [judge(seed, "") for seed in _SEEDS]
    assert [text for is_right, text in said if not is_right] == []


@pytest.mark.parametrize("kind", BUGS)
def test_planted_bugs_are_named_by_the_dumps_alone(kind: str) -> None:
    said = [judge(seed, kind) for seed in _SEEDS]
    wrong = [text for is_right, text in said if not is_right]
    assert len(wrong) <= 1, wrong

import random

import numpy as np
import pytest
import torch

from rollcall import seed_all
from rollcall.errors import UsageError


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def test_same_seed_same_numbers() -> None:
    """One seed fixes random, numpy and torch."""
    seed_all(7)
    first = draw()
    seed_all(7)
    assert draw() == first
    seed_all(8)
    assert all(a != b for a, b in zip(draw(), first, strict=True))


def test_per_rank_adds_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """With per_rank the global rank is added to the seed, otherwise not."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert seed_all(10, per_rank=True) == 13
    assert seed_all(10) == 10


def test_a_seed_out_of_range() -> None:
    """A seed that numpy cannot take is refused before anything is seeded."""
    with pytest.raises(UsageError, match="out of range"):
        seed_all(-1)

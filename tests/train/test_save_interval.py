"""When a training saves."""

import time

import pytest

from rollcall.train.save_interval import SaveInterval


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 epoch", SaveInterval(1, "epoch")),
        (3, SaveInterval(3, "epoch")),
        ("500steps", SaveInterval(500, "step")),
        ("2.5 min", SaveInterval(2.5, "minute")),
        ("10 minutes", SaveInterval(10, "minute")),
    ],
)
def test_intervals_are_parsed(text: str | int, expected: SaveInterval) -> None:
    """Epochs, steps or minutes."""
    assert SaveInterval.parse(text) == expected


def test_only_the_unit_of_the_interval_counts() -> None:
    """Every second epoch, every fifth step, or after half a minute."""
    now = time.monotonic()
    epochs, steps, minutes = (SaveInterval.parse(text) for text in ("2", "5 steps", "0.5 min"))
    assert [epochs.includes_epoch(done) for done in (1, 2, 4)] == [False, True, True]
    assert [steps.includes_step(step) for step in (4, 5, 10)] == [False, True, True]
    assert [minutes.has_passed_since(now - seconds) for seconds in (15, 30)] == [False, True]
    assert not epochs.includes_step(2)
    assert not steps.includes_epoch(5)
    assert not steps.has_passed_since(now - 300)

"""What cannot hide: between what is longer than the step, and all of it."""

import pytest

from rollcall.errors import UsageError
from rollcall.rehearse.network.estimate import estimate, lines
from rollcall.rehearse.network.link import Link, parse
from rollcall.rehearse.network.traffic import LineTraffic, Traffic

TRAFFIC = Traffic(
    True, 2, {(0, 1): 5e9, (1, 0): 5e9}, {}, (LineTraffic("all_reduce", "train.py:3", True, 4, 10e9, 5e9, 5e9),)
)


def test_communication_that_is_longer_than_the_step_remains() -> None:
    found = estimate(TRAFFIC, Link(0.06, 50e9))
    assert (found.least_s, found.most_s) == (pytest.approx(0.04), pytest.approx(0.1))


def test_communication_that_is_shorter_may_hide_altogether() -> None:
    (line,) = lines(TRAFFIC, Link(0.21, 50e9))
    assert line.startswith("estimate  0 to 100 ms of communication a step cannot hide (0% to 48% of a step")


def test_a_run_without_steps_has_no_estimate() -> None:
    assert "none" in next(lines(Traffic(False, 2), Link(1.0, 1.0)))


@pytest.mark.parametrize(
    ("step_ms", "link", "said"),
    [
        (None, "400gbit", "--step-ms 210"),
        (210.0, None, "--link 400gbit"),
        (0.0, "1gbit", "more than 0"),
        (1.0, "x", "rate"),
    ],
)
def test_half_an_answer_is_refused(step_ms: float | None, link: str | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(step_ms, link)


def test_a_link_is_in_bits() -> None:
    assert parse(210, "400gbit") == Link(0.21, 50e9)
    assert parse(None, None) is None

"""When a world counts as hung: decided from looks at it, without any rank."""

from collections.abc import Iterable
from dataclasses import replace

from benchmarks.fuzz.activity import Activity, Look


def hangs_at(looks: Iterable[Look]) -> float | None:
    """The moment at which the world counts as hung."""
    activity = Activity(0.0)
    return next((look.at_s for look in looks if activity.hangs(look)), None)


def looks(count: int, ops: int = 0, ticks: int = 0, is_runnable: bool = False) -> list[Look]:
    """Ten a second; `ops` and `ticks` are those that each tenth adds."""
    return [Look(n / 10, n * ops, n * ticks, is_runnable) for n in range(count)]


def test_ranks_that_stand_still_without_cpu_hang_after_half_a_second() -> None:
    assert hangs_at(looks(20)) == 0.5


def test_ranks_that_begin_and_end_ops_do_not_hang() -> None:
    assert hangs_at(looks(300, ops=1)) is None


def test_a_rank_that_computes_has_some_seconds_more() -> None:
    assert hangs_at(looks(100, ticks=10)) == 4.0


def test_a_rank_that_waits_for_the_cpu_is_no_hang_yet() -> None:
    assert hangs_at(looks(30, is_runnable=True)) is None


def test_looks_that_come_late_are_not_enough() -> None:
    """On a busy machine two looks may be a second apart, and the ranks have had no time between them."""
    assert hangs_at(Look(float(second), 0, 0, False) for second in range(10)) == 4.0
    assert hangs_at(Look(second * 0.6, 0, 0, False) for second in range(10)) == 3.0


def test_ranks_that_wait_for_nobody_may_be_about_to_end() -> None:
    assert hangs_at(replace(look, is_waiting=False) for look in looks(30)) is None


def test_no_world_runs_for_ever() -> None:
    assert hangs_at(looks(1000, ops=1)) == 40.1

"""Kinds of ranks, found by running some of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rollcall.rehearse import kinds
from rollcall.rehearse.settings import GPUS, RehearsalSettings

WORLD = RehearsalSettings(1024, 8, tuple(range(1024)), 3, GPUS["h200"])


def explored(script: Path, truth: Callable[[int], int]) -> dict[int, bytes]:
    """What the ranks that ran did; `truth` says what each rank would do."""
    calls: dict[int, bytes] = {}
    chosen = set(kinds.first_ranks(WORLD, script))
    while chosen:
        calls.update({rank: b"%d" % truth(rank) for rank in chosen})
        chosen = kinds.between(calls, WORLD)
    return calls


def script_with(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


BORDERS = {
    "the last ranks": lambda rank: rank >= 904,
    "a border inside of a host": lambda rank: rank >= 897,
    "eight stages, a host apart": lambda rank: rank % 8,
    "four stages, many hosts apart": lambda rank: rank // 256,
    "rank 0 alone": lambda rank: rank == 0,
    "all the same": lambda rank: 0,
}


@pytest.mark.parametrize("name", BORDERS)
def test_borders_between_kinds_are_found_without_running_all_ranks(name: str, tmp_path: Path) -> None:
    truth = BORDERS[name]
    calls = explored(script_with(tmp_path, ""), truth)
    assert kinds.spread(calls, WORLD) == kinds.kinds_of({rank: b"%d" % truth(rank) for rank in range(1024)})
    assert len(calls) < 200


COMPARISONS = {
    "if rank == 517: pass": lambda rank: rank == 517,
    "if os.environ['RANK'] == '517': pass": lambda rank: rank == 517,
    "if rank // 8 == 77: pass": lambda rank: rank // 8 == 77,
    "if rank in (3, 300): pass": lambda rank: rank in (3, 300),
}


@pytest.mark.parametrize("text", COMPARISONS)
def test_a_rank_that_the_script_names_in_a_comparison_runs(text: str, tmp_path: Path) -> None:
    truth = COMPARISONS[text]
    calls = explored(script_with(tmp_path, text), truth)
    assert kinds.spread(calls, WORLD) == kinds.kinds_of({rank: b"%d" % truth(rank) for rank in range(1024)})


def test_all_ranks_run_where_each_is_a_kind_of_its_own(tmp_path: Path) -> None:
    assert len(explored(script_with(tmp_path, ""), lambda rank: rank)) == 1024

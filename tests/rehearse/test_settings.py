"""What was typed becomes settings, or one sentence."""

from pathlib import Path

import pytest

from rollcall.cli.rehearse import _settings
from rollcall.compat.private_names.rehearsed_ranks import PATCH
from rollcall.errors import UsageError
from rollcall.rehearse.check import check_size
from rollcall.rehearse.settings import GPUS, SUPPORTED, check_torch, parse_assumption, parse_gpu

ROOT = Path(__file__).parents[2]


def test_a_gpu_is_named_or_given_by_its_memory() -> None:
    assert parse_gpu("H200") == GPUS["h200"]
    assert parse_gpu("memory=24GB").memory_bytes == 24 * 10**9


def test_an_assumption_is_a_line_and_a_number() -> None:
    assert parse_assumption("src/train.py:33=0.5") == ("train.py:33", 0.5)


def test_the_last_host_may_have_fewer_ranks() -> None:
    assert _settings(10, 8, "all", 3, "h200", []).hosts == 2


@pytest.mark.parametrize(
    ("typed", "part"),
    [
        ((0, 8, "all", 3, "h200", []), "-n 0"),
        ((8, 0, "all", 3, "h200", []), "--gpus-per-host 0"),
        ((8, 8, "9", 3, "h200", []), "0 to 7"),
        ((8, 8, "x", 3, "h200", []), "--ranks x"),
        ((8, 8, "all", -1, "h200", []), "--steps -1"),
        ((8, 8, "all", 3, "abacus", []), "--gpu abacus"),
        ((8, 8, "all", 3, "h200", ["train.py=3"]), "train.py:33=0.5"),
    ],
)
def test_wrong_input_is_one_sentence(typed: tuple[int, int, str, int, str, list[str]], part: str) -> None:
    with pytest.raises(UsageError, match=part) as raised:
        _settings(*typed)
    assert "\n" not in str(raised.value)


def test_a_torch_that_was_not_tried_is_refused() -> None:
    check_torch("2.13.0+cpu")
    check_torch("2.15.1+cu130")
    with pytest.raises(UsageError, match="tried on torch"):
        check_torch("2.1.0")


def test_the_versions_are_the_same_wherever_they_are_named() -> None:
    assert PATCH.tried_on == tuple(f"torch {each}" for each in SUPPORTED)
    assert f"- torch {' and '.join(SUPPORTED)} only" in (ROOT / "docs/rehearse.md").read_text()


def test_a_check_is_for_as_many_ranks_as_one_machine_can_run() -> None:
    check_size(8)
    with pytest.raises(UsageError, match="-n 2 to 8"):
        check_size(1024)

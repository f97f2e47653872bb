"""What `make matrix` writes of its results."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOL = Path(__file__).parent.parent / "tools/matrix.py"


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("matrix", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _result(**others: Any) -> dict[str, Any]:
    passed = {"code": 0, "counts": {"passed": 7, "skipped": 1}, "failed": [], "date": "2026-11-18"}
    return {
        "torch": "2.9.1",
        "python": "3.11",
        "compat_count": 19,
        "compat": {},
        "hooks": {"seen": ["all_reduce", "wait"], "missing": []},
        "tests": {"start": passed, "record": passed, "explain": passed, "train": passed},
        **others,
    }


def test_the_page_shows_the_results(matrix: ModuleType) -> None:
    """As they are kept beside it."""
    results = json.loads(matrix.RESULTS.read_text())
    assert matrix.page(results) == matrix.PAGE.read_text()


def test_a_version_that_works_is_one_line(matrix: ModuleType) -> None:
    """Skipped tests do not count."""
    lines = matrix.table({"2.9.1 3.11": _result()}).splitlines()
    assert lines[2] == "| 2.9.1 | 3.11 | 7 of 7 | 7 of 7 | 7 of 7 | 7 of 7 | 2 of 2 | 19 of 19 | 2026-11-18 |"
    assert lines[-1] == matrix.NOTHING_LOST


def test_what_is_lost_is_named(matrix: ModuleType) -> None:
    """Hooks and private names that found nothing, and tests that fail."""
    failed = {"code": 1, "counts": {"passed": 6, "failed": 1}, "failed": ["tests/a.py::b"]}
    compat = {"torch_dns": ["there is no x", "ranks start later"]}
    hooks = {"seen": ["wait"], "missing": ["barrier"]}
    text = matrix.table({"2.16.0 3.12": _result(compat=compat, hooks=hooks, tests={"start": failed})})
    assert "| 6 of 7 | not run | not run | not run | 1 of 2 | 18 of 19 | an earlier day |" in text
    assert "`torch_dns` does not work (there is no x): ranks start later." in text
    assert "barrier is not recorded." in text
    assert "`tests/a.py::b` fails." in text


def test_an_environment_that_cannot_be_made_says_why(matrix: ModuleType) -> None:
    """In its line."""
    assert "| 2.9.1 | 3.15 | there is no Python 3.15 |" in matrix.table(
        {"2.9.1 3.15": {"problem": "there is no Python 3.15"}}
    )


def test_what_was_run_again_counts_with_the_rest(matrix: ModuleType) -> None:
    """A test that could not be torn down had failed twice."""
    before = {"code": 1, "counts": {"passed": 5, "failed": 2, "error": 1}, "failed": ["a::x", "a::x", "a::y"]}
    now = {"code": 1, "counts": {"passed": 1, "failed": 1}, "failed": ["a::y"]}
    assert matrix.count(matrix.merge(before, now)) == "6 of 7"
    assert matrix.count(matrix.merge(now, {"code": 0, "counts": {"passed": 1}, "failed": []})) == "2 of 2"


def test_versions_are_sorted_by_their_numbers(matrix: ModuleType) -> None:
    """2.9 is older than 2.11."""
    lines = matrix.table({"2.11.0 3.12": _result(), "2.9.1 3.11": _result()}).splitlines()
    assert [line.split()[1] for line in lines[2:4]] == ["2.9.1", "2.11.0"]

"""Finding runs, and what their run.json says."""

import json
from pathlib import Path

import pytest

from rollcall.errors import UsageError
from rollcall.runs import all_runs, facts_of_attempt, find_run, folder_of, read_facts, recorded_attempts, runs_home


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of one id and one that was recorded without a launcher; `latest` leads to the newest."""
    monkeypatch.setenv("ROLLCALL_DIR", str(tmp_path))
    plans = {"2026-1": {"plan": {"run_id": "a"}}, "2026-2": {"plan": {"run_id": "a"}}, "2026-3": {"attempts": []}}
    for name, facts in plans.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text(json.dumps(facts))
    (tmp_path / "runs" / "latest").symlink_to("2026-3")
    return runs_home()


def test_runs_are_listed_oldest_first(home: Path) -> None:
    """Each once, though a link leads to the newest; one whose run.json is damaged is left out."""
    (home / "2026-2" / "run.json").write_text("{")
    assert [run["name"] for run in all_runs()] == ["2026-1", "2026-3"]


def test_a_run_is_found_by_name_by_path_or_as_the_newest(home: Path) -> None:
    """A path works from anywhere."""
    assert find_run("2026-1") == find_run(str(home / "2026-1")) == home / "2026-1"
    assert find_run(None) == home / "2026-3"


def test_of_several_runs_of_one_id_the_newest_counts(home: Path) -> None:
    """And an unknown id is an error."""
    assert folder_of("a") == home / "2026-2"
    with pytest.raises(UsageError, match="no run b was begun"):
        folder_of("b")


@pytest.mark.parametrize("text", ["", "{", "[]", "\ud800"])
def test_damaged_facts_are_no_facts(tmp_path: Path, text: str) -> None:
    """Readers need no error handling of their own."""
    (tmp_path / "run.json").write_bytes(text.encode(errors="surrogatepass"))
    assert read_facts(tmp_path) == {}


def test_attempts_that_nobody_wrote_down(tmp_path: Path) -> None:
    """Rings may be there before run.json knows of their attempt; other folders are no attempts."""
    for name in ("attempt-10", "attempt-2", "attempt-x"):
        (tmp_path / "rings" / name).mkdir(parents=True)
    assert recorded_attempts(tmp_path) == [2, 10]
    assert facts_of_attempt({"attempts": [{"world_size": 2}]}, 0) == {"world_size": 2}
    assert facts_of_attempt({}, 0) == facts_of_attempt({"attempts": None}, 3) == {}

"""Rings that were copied from elsewhere are explained without the rest of their run's folder."""

import json
import shutil
import struct
from pathlib import Path

import pytest

from rollcall.errors import UsageError
from rollcall.explain.verdict import explain
from rollcall.report.perfetto import export
from rollcall.report.write import write as write_page
from rollcall.runs import find_recording, find_run
from tests.report.rings import FakeOp, write


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Rank 1 never makes the second call."""
    ops = [FakeOp("all_reduce", 1, 100, 160), FakeOp("all_reduce", 2, 200, line=12)]
    folder = write(tmp_path / "run", [ops, ops[:1], ops])
    (folder / "run.json").unlink()
    return folder


@pytest.mark.parametrize("part", [".", "rings", "rings/attempt-0"])
def test_any_part_of_the_folder_is_enough(run: Path, part: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run / part, copy)
    told = explain(find_recording(str(copy)))
    assert told.verdict is not None
    assert (told.verdict.kind, told.verdict.ranks, told.run.world_size) == ("missing-rank", (1,), 3)


@pytest.mark.parametrize("size_bytes", [0, 100])
def test_a_ring_that_is_cut_off_is_named_and_the_others_are_explained(run: Path, size_bytes: int) -> None:
    with open(next(run.rglob("rank-0.ring")), "r+b") as ring:
        ring.truncate(size_bytes)
    told = explain(run)
    assert told.verdict is not None
    assert (told.verdict.kind, told.verdict.ranks) == ("missing-rank", (1,))
    assert any(problem.startswith("rank-0.ring: ") for problem in told.run.problems)


def test_names_of_the_files_do_not_matter(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for number, path in enumerate(sorted(run.rglob("*.ring"))):
        shutil.copy(path, copy / f"from-node-{7 - number}.ring")
    told = explain(copy)
    assert told.verdict is not None
    assert told.verdict.ranks == (1,)


def test_page_and_trace_are_written_as_well(run: Path, tmp_path: Path) -> None:
    rings = run / "rings" / "attempt-0"
    assert "missing-rank" in write_page(rings, tmp_path / "page.html").read_text()
    assert export(rings, None, tmp_path / "trace.json") == 5


def test_the_attempt_is_that_of_its_folder(run: Path) -> None:
    (run / "rings" / "attempt-0").rename(run / "rings" / "attempt-4")
    assert explain(run / "rings" / "attempt-4").run.attempt == 4


def test_watch_and_other_commands_still_want_a_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run"):
        find_run(str(tmp_path))


def test_rings_of_another_version_are_one_sentence(run: Path) -> None:
    for path in run.rglob("*.ring"):
        with open(path, "r+b") as file:
            file.seek(8)
            file.write(struct.pack("<I", 99))
    (run / "run.json").write_text(json.dumps({"outcome": "ok", "versions": {"rollcall": "9.9"}}))
    with pytest.raises(
        UsageError, match=r"no ring of run can be read: rank-0.ring: its format is version 99, and this"
    ):
        explain(run)


def test_fields_of_run_json_that_are_not_understood_are_left_out_and_told(run: Path) -> None:
    """The file is damaged, or another version wrote it. The rings are explained all the same."""
    attempt = {"exit_codes": {"0": "none", "1": 0}, "ended_ns": [1], "world_size": 1 << 40, "lost": {"a": 3}}
    facts = {
        "outcome": "hung",
        "attempts": [attempt, "more"],
        "hosts": {"a": {"slots": 1 << 60}},
        "plan": [],
        "host": {},
    }
    (run / "run.json").write_text(json.dumps(facts))
    told = explain(run)
    assert told.verdict is not None
    assert (told.verdict.kind, told.outcome, told.run.world_size) == ("missing-rank", "hung", 3)
    assert any("run.json is damaged, or another version wrote it: host, plan" in each for each in told.run.problems)


def test_run_json_of_endless_brackets_is_left_out(run: Path) -> None:
    (run / "run.json").write_text('{"a":' * 100_000)
    assert explain(run).verdict is not None

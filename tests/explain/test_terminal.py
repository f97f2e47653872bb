"""What the launcher says of a run that hangs."""

import json
import os
from pathlib import Path

import pytest

from rollcall.explain.loading.load import load
from rollcall.explain.terminal import PrintedVerdict, nothing_found, tell
from rollcall.explain.verdict import explain
from rollcall.runs import SOURCES, stored_source_file, stored_source_name
from tests.report.rings import FakeOp, write

STACK = 'Current thread 0x1 (most recent call first):\n  File "/nowhere/train.py", line 3 in load\n\n'


def hanging(folder: Path, **facts: object) -> Path:
    """Rank 0 waits for rank 1, which is in no op."""
    write(folder, [[FakeOp("barrier", 1, 10)], []])
    (folder / "rings" / "attempt-0" / "rank-1.stacks").write_text(STACK)
    attempt = {"world_size": 2, **facts}
    (folder / "run.json").write_text(json.dumps({"outcome": "running", "attempts": [attempt]}))
    return folder


@pytest.mark.parametrize(("is_idle", "is_left"), [(True, False), (False, True)])
def test_a_rank_that_computes_is_left_alone(
    is_idle: bool, is_left: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And that is said; one that only sits somewhere is stuck."""
    assert tell(hanging(tmp_path, idle={"1": is_idle}), hangs_for_s=5).is_left_alone is is_left
    said = capsys.readouterr().err
    assert "busy-rank — look at rank 1" in said
    assert ("rank 1 uses its processor, so the run is left alone" in said) is is_left
    assert ("a rank is busy for 5 s" in said) is is_left


@pytest.mark.parametrize("file", ["torch/serialization.py", "torch/_inductor/async_compile.py"])
def test_a_rank_in_a_save_or_a_compile_is_left_alone(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may wait for a disk or a compiler without using the processor; and that is said once."""
    folder = hanging(tmp_path, idle={"1": True})
    saving = STACK.replace("\n", f'\n  File "/x/site-packages/{file}", line 9 in save\n', 1)
    (folder / "rings" / "attempt-0" / "rank-1.stacks").write_text(saving)
    assert tell(folder, hangs_for_s=5).is_left_alone
    assert "rank 1 is in a save or a compile, so the run is left alone" in capsys.readouterr().err
    assert tell(folder, hangs_for_s=5, is_told_before=True).is_left_alone
    assert capsys.readouterr().err == ""


def test_a_run_in_which_all_ranks_wait_for_locks_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No rank is in an op. Without that its agents have seen it, a rank that sits somewhere is no finding; nor one in a
    save."""
    write(tmp_path, [[FakeOp("barrier", 1, 10, 11)]])
    stack = tmp_path / "rings" / "attempt-0" / "rank-0.stacks"

    def told(**facts: object) -> tuple[PrintedVerdict, str]:
        attempt = {"world_size": 1, "idle": {"0": True}, "hung": True, **facts}
        (tmp_path / "run.json").write_text(json.dumps({"outcome": "running", "attempts": [attempt]}))
        return tell(tmp_path, hangs_for_s=5), capsys.readouterr().err

    stack.write_text(STACK)
    found, said = told(asleep=True)
    assert (found.verdict["kind"], found.verdict["ranks"], found.is_left_alone) == ("busy-rank", [0], False)
    assert found.verdict["sites"] == ["/nowhere/train.py:3"]
    assert "no rank has made progress for 5 s, and all wait for locks" in said
    assert told(asleep=False)[0].verdict["kind"] == "unknown"
    stack.write_text(STACK.replace("\n", '\n  File "/x/torch/serialization.py", line 9 in save\n', 1))
    assert told(asleep=True)[0].is_left_alone


def test_lines_are_shown_as_they_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program has changed since, or is not on this machine."""
    folder = hanging(tmp_path)
    stored = folder / "rings" / "attempt-0" / SOURCES
    stored.mkdir()
    (stored / stored_source_name("/nowhere/train.py")).write_text("import x\n\nrows = x.load(path)\n")
    tell(folder, hangs_for_s=5)
    assert "train.py:3  rows = x.load(path)" in capsys.readouterr().err
    # Of another run, which has no copy, nothing is left over.
    tell(hanging(tmp_path / "other"), hangs_for_s=5)
    assert "rows = x.load(path)" not in capsys.readouterr().err


def test_a_path_comes_back_from_its_name() -> None:
    """Also one with odd characters; one that is too long for a file's name is not kept."""
    assert stored_source_file(stored_source_name("/a b/ü%2F.py")) == "/a b/ü%2F.py"
    assert stored_source_file(stored_source_name("/not-text-\udcff.py")) == "/not-text-\udcff.py"
    assert stored_source_name("/" + "x" * 300) == ""


def test_a_stack_from_before_the_last_op_says_nothing(tmp_path: Path) -> None:
    """The rank has gone on since it was asked."""
    folder = write(tmp_path, [[FakeOp("barrier", 1, 10, 20)]])
    stacks = folder / "rings" / "attempt-0" / "rank-0.stacks"
    stacks.write_text(STACK)
    assert load(folder).ranks[0].stack
    os.utime(stacks, ns=(0, 0))
    assert not load(folder).ranks[0].stack


def test_without_a_recording_no_calls_are_said_to_match(tmp_path: Path) -> None:
    """As on a disk that was full from the beginning."""
    (tmp_path / "rings" / "attempt-0").mkdir(parents=True)
    (tmp_path / "run.json").write_text(json.dumps({"outcome": "ok", "attempts": [{"world_size": 2}]}))
    said = nothing_found(explain(tmp_path))
    assert said == "no finding: no rank was recorded, so there are no calls to compare"

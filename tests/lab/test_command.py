"""`rollcall lab` on its own ranks and on those of torchrun and `rollcall run`: what it prints, and its exit code."""

import json
import os
import re
import sys
from base64 import b64encode
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from rollcall import RankError
from rollcall.cli.app import app
from rollcall.errors import UsageError
from rollcall.explain.verdict import explain
from rollcall.initialization import environment
from rollcall.lab import NAMES
from rollcall.lab.experiment import LabSettings, Results, Verdict, always, load
from rollcall.lab.runner import existing_ranks, perform, worlds
from rollcall.report import logs
from rollcall.runs import all_runs


def test_the_lab_lists_its_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with the question that it answers."""
    app(["lab"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert all(name in printed for name in NAMES)
    assert "does order hold without a barrier?" in printed


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The same, in order."""
    app(["lab", "--json"], standalone_mode=False)
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == list(NAMES)


@dataclass(frozen=True)
class Lab:
    """What `rollcall lab barrier -n 2 --trials 5 --json` printed, and the folder of its run."""

    outcome: dict[str, Any]
    folder: Path
    runs: str
    report: str


@pytest.fixture(scope="module")
def barrier(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    words = ["lab", "barrier", "-n", "2", "--trials", "5", "--json"]
    home = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setenv("ROLLCALL_DIR", str(home))
        patch.setattr(sys, "argv", ["rollcall", *words])
        assert app(words, standalone_mode=False) == 0
        outcome = json.loads(printed.getvalue())
        runs = "\n".join(" ".join(run["command"]) for run in all_runs())
        app(["report"], standalone_mode=False)  # of the newest run, which is this
    folder = (home / "runs" / "latest").resolve()
    return Lab(outcome, folder, runs, (folder / "report.html").read_text())


def test_one_experiment_as_json(barrier: Lab) -> None:
    """Nothing but JSON on stdout: verdict, numbers, claims, results; the same is in the run's folder."""
    outcome = barrier.outcome
    assert (outcome["experiment"], outcome["ranks"], outcome["trials"]) == ("barrier", 2, 5)
    assert outcome["numbers"]["barrier"]["inversions"] == 0
    assert outcome["violations"] == []
    assert json.loads((barrier.folder / "lab.json").read_text()) == outcome


def test_an_experiment_is_a_run(barrier: Lab) -> None:
    """`rollcall runs` lists it as it was typed, and its picture is a PNG in its folder."""
    assert "rollcall lab barrier -n 2 --trials 5 --json" in barrier.runs
    assert "lab-barrier" in barrier.folder.name
    assert Path(barrier.outcome["picture"]).read_bytes().startswith(b"\x89PNG")
    assert Path(barrier.outcome["picture"]).parents[1] == barrier.folder


def test_the_report_of_an_experiment_shows_its_picture_and_its_verdict(barrier: Lab) -> None:
    """`rollcall report` right after: one file, with both in it."""
    assert b64encode(Path(barrier.outcome["picture"]).read_bytes()).decode() in barrier.report
    sentence = barrier.outcome["sentence"]
    assert escape(f"Does order hold without a barrier? {sentence[0].upper()}{sentence[1:]}.") in barrier.report


def test_one_trial_of_an_experiment_is_recorded(barrier: Lab) -> None:
    """One, however many were measured: every barrier of its four variants is there, on both ranks."""
    explanation = explain(barrier.folder)
    assert explanation.outcome == "ok"
    for rank in explanation.run.ranks.values():
        barriers = [op for op in rank.ops if op.site and op.site.file.endswith("lab/experiments/collective/barrier.py")]
        assert len(barriers) == 4 + 2 + 1  # one before each variant; two variants have one; and `once`
    assert set(explanation.run.ranks) == {0, 1}


def test_the_logs_of_an_experiment_have_the_lines_of_its_ranks(barrier: Lab) -> None:
    """In the run's logs, with their times: facts, message, result."""
    lines, _ = logs.read(barrier.folder)
    assert all(line.time_ns for line in lines)
    for rank in (0, 1):
        said = [line.text for line in lines if line.rank == rank]
        assert any('"global_rank": ' + str(rank) in line for line in said)
        assert said[-1].endswith("Results: [[1, 2, 3]]")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lab", "bariere"], "did you mean barrier?"),
        (["lab", "barrier", "-n", "1"], "barrier needs 2 ranks or more"),
        (["lab", "barrier", "-n", "5000"], "-n 5000 is too many"),
        (["lab", "barrier", "--trials", "0"], "--trials 0 measures nothing"),
        (["lab", "ring", "--backend", "smoke"], "backend is 'smoke'"),
        (["lab", "hosts", "-n", "3"], "cannot be shared"),
        (["lab", "hosts", "--virtual-hosts", "2"], "starts virtual hosts by itself"),
        (["lab", "ring", "--virtual-hosts", "0"], "--virtual-hosts 0 is not possible"),
        (["lab", "ring", "--largest", "1MB"], "--largest is not for ring"),
        (["lab", "bandwidth", "--largest", "much"], "--largest much is not a size of 512 KiB or more"),
        (["lab", "deadlock", "--arm", "recv recv"], "--case needs ranks that are already started"),
        (["lab", "all", "--node_rank", "0"], "leave the other options out"),
        (["lab", "barrier", "--nnodes=2", "--node_rank=2"], "--node_rank 2 is not among 2 nodes"),
        (["lab", "barrier", "--nnodes=2", "--nproc_per_node=2", "--world_size=5"], "--world_size 5 is not 2 nodes × 2"),
        (["lab", "barrier", "--init_method=carrier://pigeon"], "init_method is 'carrier://pigeon', which is unknown"),
        (["lab", "ring", "--nnodes=1", "--run_with_no_barrier"], "--run_with_no_barrier is not for ring"),
        (["lab", "barrier", "--master_port=70000"], "--master_port 70000 does not exist"),
    ],
)
def test_bad_usage_is_one_sentence(words: list[str], sentence: str) -> None:
    """Exit code 2, and what to do."""
    with pytest.raises(UsageError, match=re.escape(sentence)) as caught:
        app(words, standalone_mode=False)
    assert caught.value.exit_code == 2


def test_a_case_that_hangs_though_it_should_not_is_an_error(tmp_path: Path) -> None:
    """The error names the case and the reason. Only if the case may fail, hanging is a result."""
    deadlock = load("deadlock")
    must_end = replace(deadlock, cases=(replace(deadlock.cases[0], limit_s=1, may_fail=False),))
    with pytest.raises(RankError, match="case 'recv recv', hung: it did not end within 1 s"):
        perform.collect(must_end, LabSettings(2, 1), tmp_path)


def test_a_violated_invariant_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is shown all the same, and the run is noted as failed."""
    monkeypatch.setenv("ROLLCALL_DIR", str(tmp_path))
    broken = replace(load("hello"), judge=lambda results: Verdict("no", {}, (always("it holds", False),)))
    assert perform.one(broken, LabSettings(1, 1, as_json=True, with_picture=False)) == 1
    facts = json.loads((tmp_path / "runs" / "latest" / "run.json").read_text())
    assert (facts["outcome"], facts["exit_code"]) == ("failed", 1)


def test_one_that_cannot_be_measured_does_not_end_the_whole_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is named, its run is noted as failed, the next one runs; exit code 1."""

    def refuse(results: Results) -> Verdict:
        raise UsageError("these clocks tell no order")

    monkeypatch.setenv("ROLLCALL_DIR", str(tmp_path))
    monkeypatch.setattr(perform, "NAMES", ("hello", "backends"))
    monkeypatch.setattr(
        perform, "load", lambda name: replace(load(name), judge=refuse) if name == "hello" else load(name)
    )
    assert perform.all_of_them(lambda _: LabSettings(1, 1, with_picture=False), as_json=False) == 1
    printed = capfd.readouterr()
    assert "hello could not be measured: these clocks tell no order" in printed.err
    assert "1 experiments in" in printed.out
    outcomes = {run["name"].rpartition("-")[2]: run["outcome"] for run in all_runs()}
    assert outcomes == {"hello": "failed", "backends": "ok"}


def test_what_has_the_same_result_each_time_runs_once(capfd: pytest.CaptureFixture[str]) -> None:
    """`--trials 5` of a deadlock is refused with a message."""
    assert perform.check(load("deadlock"), LabSettings(2, 5)).trials == 1
    assert "it runs once, not 5 times" in capfd.readouterr().err


def test_an_experiment_runs_under_torchrun(tmp_path: Path) -> None:
    """On ranks with torchrun's variables: rank 0 states the verdict, and both ranks are recorded."""

    def run(rank: int) -> int:
        assert environment.find_assignment(os.environ).launcher == "torchrun"
        return app(["lab", "send", "--trials", "2", "--no-picture"], standalone_mode=False)

    answers = worlds.start_server().call(run, 2, env={"ROLLCALL_DIR": str(tmp_path)}, capture=True)
    assert [answer.value for answer in answers] == [0, 0], answers[0].traceback
    assert "verdict: all 2 ranks began with 0 and ended with 1" in answers[0].output
    assert "verdict" not in answers[1].output
    assert json.loads((tmp_path / "runs" / "latest" / "lab.json").read_text())["ranks"] == 2
    assert set(explain(tmp_path / "runs" / "latest").run.ranks) == {0, 1}


def test_in_a_recorded_run_the_picture_is_in_its_folder(tmp_path: Path) -> None:
    """On ranks of `rollcall run`, which sets ROLLCALL_RUN: no second run folder, no second recording."""

    def run(rank: int) -> int:
        return existing_ranks.run(load("send"), LabSettings(2, 2), rank, None, None)

    env = {"ROLLCALL_RUN": str(tmp_path), "ROLLCALL_DIR": str(tmp_path / "home")}
    answers = worlds.start_server().call(run, 2, env=env, capture=True)
    assert [answer.value for answer in answers] == [0, 0], answers[0].output
    assert (tmp_path / "pictures" / "send.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lab.json", "pictures"]


def test_one_case_runs_on_ranks_that_are_already_started() -> None:
    """`rollcall run -m rollcall lab deadlock --case NAME`: each rank logs its value."""

    def run(rank: int) -> int:
        return existing_ranks.run(load("deadlock"), LabSettings(2, 1), rank, "recv recv, fixed", None)

    answers = worlds.start_server().call(run, 2, capture=True)
    assert [answer.value for answer in answers] == [0, 0]
    assert "rank 0: recv recv, fixed: 1.0" in answers[0].output


def test_an_unknown_case_is_refused_with_the_known_ones() -> None:
    """So that the right one can be copied."""
    with pytest.raises(UsageError, match="deadlock has no case 'send recv': it has 'recv recv', 'ring of receives'"):
        load("deadlock").case("send recv")

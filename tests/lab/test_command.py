"""`rollcall lab`, `python -m rollcall.lab.NAME`, and torchrun: what is shown, and how it ends."""

import json
import os
import re
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall import RankError
from rollcall.lab import NAMES, perform
from rollcall.lab.experiment import Claim, Settings, Verdict, load
from tests.launch.conftest import Runner, rollcall  # noqa: F401


def test_the_lab_lists_its_experiments(rollcall: Runner) -> None:  # noqa: F811
    """Sixteen, each with the question that it answers, and without importing torch."""
    shown = rollcall("lab")
    assert shown.code == 0
    assert all(name in shown.out for name in NAMES)
    assert "does order hold without a barrier?" in shown.out
    listed = json.loads(rollcall("lab", "--json").out)
    assert [each["name"] for each in listed] == list(NAMES)


def test_one_experiment_as_json_with_its_picture(rollcall: Runner) -> None:  # noqa: F811
    """Nothing but JSON on stdout: verdict, numbers, claims, results; the picture is a PNG in the run's folder."""
    ran = rollcall("lab", "barrier", "-n", "2", "--trials", "5", "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert (told["experiment"], told["ranks"], told["trials"]) == ("barrier", 2, 5)
    assert told["numbers"]["barrier"]["inversions"] == 0
    assert told["violations"] == []
    picture = Path(told["picture"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads((picture.parents[1] / "lab.json").read_text()) == told
    assert "lab-barrier" in os.path.realpath(rollcall.latest())
    assert "lab barrier" in rollcall("runs").out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lab", "bariere"], "did you mean barrier?"),
        (["lab", "barrier", "-n", "1"], "barrier needs 2 ranks or more"),
        (["lab", "barrier", "--trials", "0"], "--trials 0 measures nothing"),
        (["lab", "ring", "--backend", "smoke"], "backend is 'smoke'"),
        (["lab", "hosts", "-n", "3"], "cannot be shared"),
        (["lab", "hosts", "--virtual-hosts", "2"], "compares hosts by itself"),
        (["lab", "ring", "--virtual-hosts", "0"], "--virtual-hosts 0 is not possible"),
        (["lab", "ring", "--largest", "1MB"], "--largest is not for ring"),
        (["lab", "bandwidth", "--largest", "much"], "--largest much is not a size"),
        (["lab", "deadlock", "--arm", "recv recv"], "is for a world that is there"),
        (["lab", "all", "--node_rank", "0"], "leave others out"),
        (["lab", "barrier", "--nnodes=2", "--node_rank=2"], "--node_rank 2 is not among 2 nodes"),
        (["lab", "barrier", "--nnodes=2", "--nproc_per_node=2", "--world_size=5"], "--world_size 5 is not 2 nodes × 2"),
        (["lab", "barrier", "--init_method=carrier://pigeon"], "--init_method carrier://pigeon is not known"),
        (["lab", "ring", "--nnodes=1", "--run_with_no_barrier"], "--run_with_no_barrier is not for ring"),
        (["lab", "barrier", "--master_port=70000"], "--master_port 70000 does not exist"),
    ],
)
def test_bad_usage_is_one_sentence(words: list[str], sentence: str) -> None:
    """Exit code 2, and what to do."""
    from rollcall.cli import app
    from rollcall.errors import UsageError

    with pytest.raises(UsageError, match=re.escape(sentence)) as caught:
        app(words, standalone_mode=False)
    assert caught.value.exit_code == 2


def test_an_arm_that_should_end_and_does_not_is_an_error(tmp_path: Path) -> None:
    """It is named, with why; only where failing is the experiment, it is a result."""
    deadlock = load("deadlock")
    honest = replace(deadlock, arms=(replace(deadlock.arms[0], limit_s=1, may_fail=False),))
    with pytest.raises(RankError, match="arm 'recv recv', hung: it did not come to its end within 1 s"):
        perform.collect(honest, Settings(2, 1), tmp_path)


def test_a_violated_invariant_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is shown all the same, and the run is noted as failed."""
    monkeypatch.setenv("ROLLCALL_DIR", str(tmp_path))
    broken = replace(load("hello"), judge=lambda results: Verdict("no", {}, (Claim("it holds", holds=False),)))
    assert perform.one(broken, Settings(1, 1), as_json=True, with_picture=False) == 1
    facts = json.loads((tmp_path / "runs" / "latest" / "run.json").read_text())
    assert (facts["outcome"], facts["exit_code"]) == ("failed", 1)


def test_an_experiment_runs_under_torchrun(tmp_path: Path) -> None:
    """`torchrun -m rollcall.lab.send`: the world is torchrun's, and rank 0 states the verdict."""
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    words = [torchrun, "--standalone", "--nproc-per-node", "2", "-m", "rollcall.lab.send", "--trials", "2"]
    words += ["--no-picture"]
    env = {**os.environ, "ROLLCALL_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("verdict: all 2 ranks began with 0 and ended with 1") == 1
    assert json.loads((tmp_path / "runs" / "latest" / "lab.json").read_text())["ranks"] == 2


def test_the_picture_is_in_the_runs_report(rollcall: Runner) -> None:  # noqa: F811
    """`rollcall run -m rollcall.lab.send`, then `rollcall report`: one file, with the picture in it."""
    assert rollcall("run", "-n", "2", "-m", "rollcall.lab.send", "--trials", "2").code == 0
    ran = rollcall("report")
    assert ran.code == 0, ran.err
    picture = (rollcall.latest() / "pictures" / "send.png").read_bytes()
    assert b64encode(picture).decode() in (rollcall.latest() / "report.html").read_text()


def test_one_arm_runs_under_rollcall_run_and_is_explained(rollcall: Runner) -> None:  # noqa: F811
    """A deadlock of the lab, live: it hangs, is ended, and named with its line."""
    words = ["-m", "rollcall.lab.deadlock", "--arm", "recv recv"]
    ran = rollcall("run", "-n", "2", "--hang-after", "2", "--on-hang", "stop", "--grace", "1", *words)
    assert ran.code == 124
    assert "p2p-deadlock" in ran.err
    assert "deadlock.py" in ran.err

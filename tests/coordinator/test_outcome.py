"""A run is ok only if every rank of its last attempt reported its end with 0; whatever is not known is a failure."""

import os
import sys

from rollcall.coordinator.failure import Report
from rollcall.linux.child_process import ChildProcess
from rollcall.protocol.messages import Ended
from tests.rollcall_command import Runner


def ended(rank: int, exit_code: int = 0) -> Ended:
    return Ended(0, rank, exit_code, ended_ns=0, asked=False)


def attempt_of(ranks: int, *ends: Ended) -> Report:
    report = Report(0)
    report.note_host("here", range(ranks))
    for each in ends:
        report.add(each, None)
    return report


def test_all_ranks_with_0_are_ok() -> None:
    assert attempt_of(2, ended(0), ended(1)).why_not_ok() == ""


def test_a_run_without_a_rank_is_not_ok() -> None:
    assert Report(0).why_not_ok() == "no rank was started"


def test_a_rank_that_did_not_report_its_end_is_not_ok() -> None:
    assert attempt_of(3, ended(1)).why_not_ok() == "ranks 0,2 did not report how they ended"


def test_a_host_that_started_no_ranks_is_not_ok() -> None:
    assert attempt_of(2, ended(0), ended(1)).why_not_ok(range(3)) == "rank 2 did not report how it ended"


def test_another_exit_code_is_not_ok() -> None:
    assert attempt_of(2, ended(0), ended(1, 3)).why_not_ok() == "rank 1 ended with another exit code than 0"


def test_a_child_that_was_reaped_elsewhere_has_no_exit_code() -> None:
    """It is not taken for one that ended with 0."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "raise SystemExit(3)"], os.environ)
    os.waitpid(pid, 0)
    assert ChildProcess(pid).wait(60) is None


def test_a_child_keeps_its_exit_code() -> None:
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "raise SystemExit(3)"], os.environ)
    child = ChildProcess(pid)
    assert (child.wait(60), child.wait(60)) == (3, 3)


def test_an_agent_that_cannot_import_torch_fails_the_run(rollcall: Runner) -> None:
    """Its exit code is the run's, and a sentence says that no rank ran."""
    broken = rollcall.folder / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('this torch is broken')\n")
    rollcall.env["PYTHONPATH"] = os.pathsep.join([str(broken.parent), rollcall.env.get("PYTHONPATH", "")])
    result = rollcall("run", "-n", 2, rollcall.script("print('here')"))
    assert result.code == 1
    assert "its agent exited with code 1" in result.err

"""A handful of programs on warm ranks, from the script to the verdict."""

from pathlib import Path

import pytest
from benchmarks.fuzz import score, worlds
from benchmarks.fuzz.worlds import Ended, Job

PROGRAM = """\
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
total = torch.ones(3) * rank
if rank == 1:
    BUG
dist.all_reduce(total)
dist.barrier()
print(rank, total.tolist())
dist.destroy_process_group()
"""
BUGS = {
    "correct": "pass",
    "fails": "raise ValueError('no such shard')",
    "hangs": "time.sleep(600)",
    "differs": "total = total[:2].clone()",
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """All of them on one server, two worlds at a time."""
    home = tmp_path_factory.mktemp("fuzz")
    jobs = [job(home / name, bug) for name, bug in BUGS.items()]
    return {each.job.name: each for each in worlds.run(jobs, at_once=2)}


def job(folder: Path, bug: str, is_recorded: bool = True) -> Job:
    folder.mkdir()
    script = folder / "program.py"
    script.write_text(PROGRAM.replace("BUG", bug))
    return Job(folder.name, script, folder, 3, is_recorded)


def test_a_correct_program_ends_well_and_is_not_blamed(ended: dict[str, Ended]) -> None:
    run = ended["correct"]
    assert (run.outcome, run.exit_codes) == ("ok", {0: 0, 1: 0, 2: 0})
    assert run.printed[2] == "2 [3.0, 3.0, 3.0]\n"
    # On a busy machine a run of a tenth of a second may have a real straggler.
    assert score.explain(run.job.folder, run.job.script).kind in ("nothing", "straggler")


@pytest.mark.parametrize(
    ("name", "outcome", "kind"), [("fails", "failed", "rank-failed"), ("hangs", "stopped", "busy-rank")]
)
def test_a_bug_leaves_what_explain_needs(name: str, outcome: str, kind: str, ended: dict[str, Ended]) -> None:
    run = ended[name]
    got = score.explain(run.job.folder, run.job.script)
    assert (run.outcome, got.kind, got.ranks) == (outcome, kind, (1,))
    assert 7 in got.lines


def test_a_hang_is_noticed_within_seconds(ended: dict[str, Ended]) -> None:
    assert ended["hangs"].seconds < 120  # it would sleep for ten minutes


def test_every_rank_is_gone_when_its_world_is_over(ended: dict[str, Ended]) -> None:
    assert all(len(run.exit_codes) == 3 for run in ended.values())

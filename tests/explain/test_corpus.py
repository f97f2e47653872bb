"""A bug of each kind that explain names, as a user would run it, and its twin. `make corpus` runs all programs."""

import runpy
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from benchmarks.fuzz import worlds
from benchmarks.fuzz.worlds import Job

from rollcall.explain import verdict
from rollcall.functions.pool import RankPool
from rollcall.record import recorder
from tests.blame import blamed

from .corpus import CORPUS, Program, explain, is_right

# Only those whose evidence does not depend on who dies first: where gloo aborts one rank before another has come to the
# call, the majority is not there to be counted. The busy rank is one that polls: computing takes a core for 14 s.
NAMED = [
    "busy-rank/marker_file",
    "busy-rank/full_queue",
    "buffer-overwritten/ring_buffer",
    "cross-group-deadlock/channels",
    "cross-group-deadlock/mesh",
    "cross-group-deadlock/leaders",
    "ddp-model-mismatch/task_order",
    "ddp-uneven-inputs/clean_rows",
    "group-incomplete/pair",
    "group-incomplete/old_settings",
    "input-stall/feeder",
    "mismatched-dtype/compression",
    "mismatched-dtype/token_counts",
    "mismatched-op/collector",
    "mismatched-reduce-op/worst_loss",
    "mismatched-root/reports",
    "missing-rank/epoch",
    "missing-rank/epoch_save",
    "non-member-call/editors",
    "order-inversion/two_losses",
    "order-swap/epoch_end",
    "p2p-against-collective/next_rate",
    "p2p-deadlock/prefix_sum",
    "p2p-dtype/labels",
    "p2p-size/features",
    "rank-exited-early/no_files",
    "rank-exited-early/good_enough",
    "rank-exited-early/watchdog",
    "rank-failed/price_table",
    "tag-mismatch/parameter_server",
    "unmatched-recv/collect_any",
    "unmatched-send/vocab_size",
    "unwaited-work/gradients",
    "world-incomplete/spare_rank",
    "wrong-peer/tree_sum",
    "wrong-peer/gossip",
]
ONE_OF_EACH_KIND = list({name.partition("/")[0]: name for name in NAMED}.values())


# One that hangs, one that fails, and one that is busy, which only the launcher's --timeout ends.
RUN_BY_ROLLCALL = ["missing-rank/epoch", "rank-failed/price_table", "busy-rank/marker_file"]
# The sampler looks for an error once in a second: warm ranks would be stopped before.
RUN_BY_ROLLCALL.append("rank-failed/shared_cleanup")


@pytest.mark.parametrize("name", RUN_BY_ROLLCALL)
def test_the_bug_is_named(name: str, tmp_path: Path) -> None:
    """Right kind, right ranks, right line, by `rollcall run`."""
    program = Program.read(CORPUS / f"{name}.py")
    told = explain(program, tmp_path)
    assert is_right(program, told["verdict"]), (program, told)


def test_the_bugs_are_named(tmp_path: Path) -> None:
    """Right kind, right ranks, right line. On warm ranks: a run of each takes two seconds of a core."""
    programs = {name: Program.read(CORPUS / f"{name}.py") for name in NAMED if name not in RUN_BY_ROLLCALL}
    jobs = [Job(name, program.path, tmp_path / name, program.ranks) for name, program in programs.items()]
    told = {ended.job.name: verdict.explain(ended.job.folder) for ended in worlds.run(jobs)}
    verdicts = {name: verdict.to_json(each)["verdict"] for name, each in told.items()}
    assert {name: each for name, each in verdicts.items() if not is_right(programs[name], each)} == {}


@pytest.fixture(scope="session")
def server() -> Iterator[RankPool]:
    server = RankPool(preload=("torch._dynamo", __name__))
    yield server
    server.close()


def run_recorded(program: Program, folder: Path, rank: int) -> None:
    recording = recorder.begin(folder, rank, program.ranks, 0)
    try:
        runpy.run_path(str(program.path), run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
    recording.note_end(0, None)


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_the_twin_is_not_blamed(name: str, tmp_path: Path, server: RankPool) -> None:
    """The same calls without the bug: no finding. On ranks that are forked from one server: a run of each takes
    two seconds of a core."""
    program = Program.read(CORPUS / f"{name}_ok.py")
    results = server.call(partial(run_recorded, program, tmp_path), program.ranks, timeout_s=180, capture=True)
    assert [result.exit_code for result in results] == [0] * program.ranks, results
    explanation = verdict.explain(tmp_path)
    assert [bool(rank.ops) for rank in explanation.run.ranks.values()] == [True] * program.ranks
    assert (explanation.outcome, blamed(explanation)) == ("ok", [])

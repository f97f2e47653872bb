"""A job that runs is innocent: at any moment, what is merely in flight is neither missing nor uneven."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollcall.errors import UsageError
from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.cut import as_of
from rollcall.explain.loading.load import Run, load
from rollcall.explain.verdict import Explanation, explain_run
from rollcall.record import ring_format
from tests.explain.timelines import HEALTHY, Simulation, compute
from tests.report.rings import START_NS, FakeOp, ring, rings_of, run, run_of

CUTS = 400  # of each program
HANG_AFTER_MS = 60_000


def look(ranks: list[list[FakeOp]], at_ms: float, groups: dict[str, list[int]] | None = None) -> Explanation:
    """What explain says of a run that is looked at in the middle."""
    return explain_run(Evidence(run(ranks, groups=groups, outcome="running", cut_ms=at_ms)))


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_job_is_not_blamed_at_any_moment(name: str) -> None:
    """Eight ranks, looked at hundreds of times: nothing is said but of stragglers, and those are real."""
    rng = random.Random(name)
    for _ in range(CUTS // 50):
        programs, groups = HEALTHY[name](rng, 8, 12)
        ops = Simulation(programs, groups).run()
        end_ms, made = max(op.completed_ms for mine in ops for op in mine), rings_of(ops, groups)
        for _ in range(50):
            found = explain_run(Evidence(run_of(made, "running", cut_ms=rng.uniform(0.001, end_ms * 1.02))))
            assert [finding for finding in found.findings if finding.kind != "straggler"] == []
            assert found.outcome == "running"


def test_a_rank_that_really_is_slow_is_named_while_it_runs() -> None:
    """And no other."""
    rng = random.Random(1)

    def slow(rank: int, program: object) -> object:
        for step in program:  # type: ignore[attr-defined]
            yield step
            if rank == 5 and step.kind == "phase" and step.key == "forward":
                yield compute(40)

    programs, groups = HEALTHY["DDP"](rng, 8, 40)
    ops = Simulation([slow(rank, program) for rank, program in enumerate(programs)], groups).run()  # type: ignore[misc]
    end_ms = max(op.completed_ms for mine in ops for op in mine)
    for share in (0.5, 0.7, 0.9):
        [finding] = look(ops, end_ms * share, groups).findings
        assert (finding.kind, finding.ranks) == ("straggler", (5,))


def steps(count: int) -> list[FakeOp]:
    return [FakeOp("all_reduce", n, n * 10, n * 10 + 5) for n in range(1, count + 1)]


def test_a_rank_is_missing_only_after_the_limit() -> None:
    """Before that, the others may only have been quicker."""
    waiting = [*steps(2), FakeOp("all_reduce", 3, 40)]
    ranks = [waiting, waiting, steps(2)]
    assert look(ranks, 40 + HANG_AFTER_MS / 2).findings == []
    [finding] = look(ranks, 41 + HANG_AFTER_MS).findings
    assert (finding.kind, finding.ranks) == ("missing-rank", (2,))


def test_a_rank_that_makes_other_calls_meanwhile_is_not_missing() -> None:
    """It goes on, in another group: the others wait for something that takes long."""
    groups = {"side": [2, 3]}
    busy = [FakeOp("all_reduce", n, n * 1000, n * 1000 + 5, group="side") for n in range(1, 100)]
    waiting = [*steps(2), FakeOp("all_reduce", 3, 40)]
    assert look([waiting, waiting, [*steps(2), *busy], [*steps(2), *busy]], 90_000, groups).findings == []


def test_a_call_that_failed_and_was_handled_is_no_finding() -> None:
    """As a line of `rollcall shell` that was taken back: all ranks have gone on, and nobody waits in it."""
    barrier = FakeOp("barrier", 3, 40, flags=ring_format.FAILED, issued_ms=5000)
    later = FakeOp("all_reduce", 1, 6000, 6005, group="next")
    ranks, groups = [[*steps(2), later], *[[*steps(2), barrier, later]] * 2], {"next": [0, 1, 2]}
    assert look(ranks, 100_000, groups).findings == []
    [finding] = look([steps(2), *[[*steps(2), barrier]] * 2], 100_000).findings
    assert (finding.kind, finding.ranks) == ("missing-rank", (0,))


def test_a_mismatch_is_named_at_once() -> None:
    """Ranks that are in the same call and disagree do not come to agree."""
    ranks = [[*steps(2), FakeOp("all_reduce", 3, 40, shape=(5 + (rank == 1),))] for rank in range(3)]
    [finding] = look(ranks, 50).findings
    assert (finding.kind, finding.ranks) == ("mismatched-shape", (1,))


def test_of_a_ring_that_is_read_later_nothing_later_is_seen() -> None:
    """What began after the moment is gone, what ended after it is open again."""
    mine = [*steps(2), FakeOp("all_reduce", 3, 40, 90, waited_ms=60, flags=5), FakeOp("sample", 0, 41, 95)]
    records = ring(0, 1, mine, {"0": [0]}, "host-1").records
    seen = as_of(records, START_NS + 50_000_000)
    assert seen["number"].tolist() == [1, 2, 3, 4]
    assert seen["completed_ns"].tolist()[:3] == [START_NS + 15_000_000, START_NS + 25_000_000, 0]
    assert (int(seen["waited_ns"][2]), int(seen["flags"][2])) == (0, 1)
    assert int(seen["completed_ns"][3]) == START_NS + 50_000_000  # a rank is seen on a line until then
    assert len(as_of(records, START_NS + 12_000_000)) == 1
    assert np.array_equal(as_of(records, START_NS + 10**9), records)


def test_a_run_that_was_stopped_on_its_way_did_not_hang() -> None:
    """Ctrl-C comes at any moment. What blocks its rank for longer than any op before did hang."""
    waiting = [*steps(2), FakeOp("all_reduce", 3, 40)]
    made = run([waiting, waiting, steps(2)], outcome="stopped")
    for stopped_ms, outcome in ((43, "stopped"), (2000, "hung")):
        stopped: Run = replace(made, stopped_ns=START_NS + stopped_ms * 1_000_000)
        assert explain_run(Evidence(stopped)).outcome == outcome


def test_ops_in_flight_when_a_rank_fails_are_no_finding() -> None:
    """Rank 3 raises while rank 2 is on its way to a call that the others are in already."""
    waiting = [*steps(2), FakeOp("all_reduce", 3, 40)]
    found = explain_run(
        Evidence(
            run(
                [waiting, waiting, steps(2), steps(2)],
                outcome="failed",
                error={3: "KeyError: 'x'"},
                exit_code={3: 1},
                ended_ns={3: START_NS + 45_000_000},
            )
        )
    )
    assert [(finding.kind, finding.ranks) for finding in found.findings] == [("rank-failed", (3,))]


@pytest.mark.parametrize(("outcome", "why"), [("running", "its ranks are just starting"), ("ok", "--no-record")])
def test_a_run_without_rings_is_not_called_over_while_it_starts(tmp_path: Path, outcome: str, why: str) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"outcome": outcome, "plan": {"record": True}}))
    with pytest.raises(UsageError, match=why):
        load(tmp_path)

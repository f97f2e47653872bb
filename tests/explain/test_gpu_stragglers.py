"""A GPU that is slow is the straggler, not the rank whose host asked last."""

from pathlib import Path

import pytest

from rollcall.explain.evidence import Evidence
from rollcall.explain.verdict import explain, explain_run
from tests.blame import blamed
from tests.explain.dump_files import Entry
from tests.explain.dump_files import write as write_dumps
from tests.report.rings import FakeOp, run

RANKS, STEPS = 4, 12


def queued(rank: int, device: str) -> list[FakeOp]:
    """The hosts ask for a step while the GPUs are still in the one before it. Rank 3's host always asks last."""
    asked_ms = [200 * step + (90 if rank == 3 else 10) for step in range(STEPS)]
    return [
        FakeOp("all_reduce", step + 1, asked_ms[step], 200 * step + 295, device=device, issued_ms=asked_ms[step] + 1)
        for step in range(STEPS)
    ]


def test_the_rank_that_asks_last_is_no_straggler_if_its_gpu_is_busy_until_then() -> None:
    found = explain_run(Evidence(run([queued(rank, "cuda") for rank in range(RANKS)])))
    assert not found.findings
    assert found.waits.caused_s[3] == pytest.approx(3 * 0.08)  # the first step, before which no GPU had work


def test_the_rank_that_comes_last_without_a_gpu_is_the_straggler() -> None:
    """The twin of the one above: here ranks are blocked from when they ask."""
    found = explain_run(Evidence(run([queued(rank, "cpu") for rank in range(RANKS)])))
    assert found.verdict
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", (3,))


def throttled(rank: int, slow: int) -> list[FakeOp]:
    """Each pair of neighbours reduces on its own, then all ranks together: the pair of a slow GPU is late for that.
    The hosts ask for everything in time, rank 0's as the last."""
    ops = []
    for step in range(STEPS):
        began_ms, asked_ms = 200 * step, 200 * step + 2 * (rank == 0)
        pair_ms = began_ms + (150 if rank // 2 == slow // 2 else 20)
        pair = {"group": f"pair-{rank // 2}", "line": 5}
        ops.append(FakeOp("all_reduce", step + 1, asked_ms, pair_ms, device="cuda", **pair))
        ops.append(FakeOp("all_reduce", step + 1, asked_ms + 1, began_ms + 160, device="cuda", line=6))
    return ops


PAIRS = {f"pair-{first // 2}": (first, first + 1) for first in range(0, 6, 2)}


@pytest.mark.parametrize("slow", [2, 5])
def test_the_ranks_whose_gpus_are_late_are_named(slow: int) -> None:
    found = explain_run(Evidence(run([throttled(rank, slow) for rank in range(6)], PAIRS)))
    assert found.verdict
    pair = (slow // 2 * 2, slow // 2 * 2 + 1)
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", pair)
    assert found.verdict.message.startswith(f"the GPU of ranks {pair[0]}-{pair[1]} arrived last")


def dumps(folder: Path, slow: int | None) -> Path:
    """All hosts ask at once. The GPU that came last was in the call for the shortest time."""
    ranks = {
        rank: [
            Entry("all_reduce", n, 1000 * n, 1000 * n + 900, took_ms=5 if rank == slow else 500, line=7)
            for n in range(STEPS)
        ]
        for rank in range(RANKS)
    }
    return write_dumps(folder, ranks)


def test_dumps_with_device_times_name_the_slow_gpu(tmp_path: Path) -> None:
    found = explain(dumps(tmp_path, slow=1))
    assert found.verdict
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", (1,))
    assert found.verdict.message.startswith("the GPU of rank 1 arrived last in 12 of 12 calls")


def test_dumps_of_gpus_that_are_equally_fast_name_nobody(tmp_path: Path) -> None:
    assert not blamed(explain(dumps(tmp_path, slow=None)))
    assert not explain(tmp_path).findings

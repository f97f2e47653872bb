"""A GPU that is slow is the straggler, not the rank whose host asked last."""

from pathlib import Path

import pytest

from rollcall.explain.evidence import Evidence
from rollcall.explain.verdict import explain, explain_run
from rollcall.record import ring_format
from tests.blame import blamed
from tests.explain.dump_files import Entry
from tests.explain.dump_files import write as write_dumps
from tests.report.rings import FakeOp, run

RANKS, STEPS = 4, 12


def queued(rank: int, device: str) -> list[FakeOp]:
    """The hosts ask for a step while the GPUs are still in the one before it, without GPUs when it is over. Rank 3's
    host always asks last."""
    asked_ms = [200 * step + (90 if rank == 3 else 10) for step in range(STEPS)]
    end_ms = 295 if device == "cuda" else 195
    return [
        FakeOp("all_reduce", step + 1, asked_ms[step], 200 * step + end_ms, device=device, issued_ms=asked_ms[step] + 1)
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


def computing(rank: int, slow: int | None) -> list[FakeOp]:
    """The hosts ask for all steps at once. In each step a GPU computes for 50 ms, the slow one for 150 ms."""
    whole_ms = 100 if slow is None else 200
    late_ms = 150 if rank == slow else 50
    return [
        FakeOp(
            "all_reduce",
            step + 1,
            step,
            whole_ms * (step + 1),
            device="cuda",
            issued_ms=whole_ms * step + late_ms,
        )
        for step in range(STEPS)
    ]


def test_a_gpu_that_computes_longest_is_the_straggler() -> None:
    """The recorder tells when each GPU came to the op."""
    found = explain_run(Evidence(run([computing(rank, slow=2) for rank in range(RANKS)])))
    assert found.verdict
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", (2,))
    assert found.verdict.message.startswith("the GPU of rank 2 arrived last")


def buckets(rank: int, slow: int) -> list[FakeOp]:
    """Each step has three buckets. The hosts ask for them at once; the first and the last have a time of the GPU."""
    flags = ring_format.ASYNC | ring_format.WAITED | ring_format.BUCKET
    ops = []
    for step in range(STEPS):
        began_ms, late_ms = 200 * step, 150 if rank == slow else 50
        for place, came_ms in enumerate((late_ms, 1, late_ms + 10)):
            ops.append(
                FakeOp(
                    "all_reduce",
                    3 * step + place + 1,
                    began_ms + place,
                    began_ms + 180,
                    waited_ms=began_ms + late_ms + 11,
                    flags=flags,
                    device="cuda",
                    issued_ms=began_ms + came_ms,
                )
            )
    return ops


def test_a_bucket_without_a_time_is_not_earlier_than_the_one_before() -> None:
    """The GPUs of all ranks come to it between their first and their last bucket."""
    evidence = Evidence(run([buckets(rank, slow=1) for rank in range(RANKS)]))
    arrived_ns = evidence.table.arrived_ns.reshape(-1, 3)
    assert (arrived_ns[:, 1] == arrived_ns[:, 0]).all()
    found = explain_run(evidence)
    assert found.verdict
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", (1,))


def test_what_a_gpu_computes_before_an_op_is_not_communication() -> None:
    """Of each step of 100 ms the GPUs compute for 50 ms. None of them is late."""
    found = explain_run(Evidence(run([computing(rank, slow=None) for rank in range(RANKS)])))
    assert not found.findings
    (cost,) = found.costs.by_op
    assert cost.blocked_s == pytest.approx(RANKS * STEPS * 0.05)


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

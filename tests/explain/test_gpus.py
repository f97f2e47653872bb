"""What was noted of the GPUs of ranks explains why a run was slow, or ended."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollcall.explain.findings import Finding
from rollcall.explain.verdict import advice, explain
from rollcall.runs import GPU_SAMPLES, NCCL_RAS
from tests.report.rings import START_NS, FakeOp, write

RANKS, STEPS = 8, 12
WELL: dict[str, Any] = {"utilisation": 97, "sm_mhz": 1980, "throttled": [], "uncorrected_errors": 0, "pids": []}
HOT = {"throttled": ["too hot"]}


def steps(rank: int, slow: int, device: str = "cuda", is_open: bool = False) -> list[FakeOp]:
    """The slow one comes last to every step; of a run that hangs, it never comes to the last."""
    found = []
    for step in range(STEPS):
        ends_ms = 0 if is_open and step == STEPS - 1 else 1000 * step + 905
        if ends_ms or rank != slow:
            asked_ms = 1000 * step + (900 if rank == slow else 10)
            found.append(FakeOp("all_reduce", step + 1, asked_ms, ends_ms, device=device))
    return found


def note(folder: Path, seconds: dict[int, dict[int, dict[str, Any]]], visible: list[int] | None = None) -> None:
    """By second: what is different from a healthy GPU, by GPU."""
    place = folder / "rings" / "attempt-0"
    with open(place / GPU_SAMPLES.format(host="host-1"), "w") as lines:
        for second, different in seconds.items():
            gpus = [{"index": gpu, **WELL, **different.get(gpu, {})} for gpu in range(RANKS)]
            line = {"at_ns": START_NS + second * 10**9, "host": "host-1", "visible": visible, "gpus": gpus}
            lines.write(json.dumps(line) + "\n")
        lines.write('{"half wri')


def verdict(folder: Path, outcome: str = "ok") -> Finding:
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(facts | {"outcome": outcome}))
    found = explain(folder).verdict
    assert found is not None
    return found


@pytest.mark.parametrize(("visible", "gpu"), [(None, 5), ([7, 6, 5, 4, 3, 2, 1, 0], 2)])
def test_a_straggler_whose_gpu_was_throttled(tmp_path: Path, visible: list[int] | None, gpu: int) -> None:
    """With since when. Ranks use GPUs in the order of CUDA_VISIBLE_DEVICES."""
    write(tmp_path, [steps(rank, slow=5) for rank in range(RANKS)])
    note(tmp_path, {0: {}, 1: {gpu: HOT}, 11: {gpu: HOT}}, visible)
    found = verdict(tmp_path)
    assert (found.kind, found.ranks) == ("straggler", (5,))
    assert f"; its GPU {gpu} was throttled (too hot) since " in found.message
    assert "cooling" in advice(found)


@pytest.mark.parametrize(
    ("seconds", "device"),
    [
        ({0: {}, 1: {4: HOT}, 11: {4: HOT}}, "cuda"),  # another one
        ({0: {}, 9: {5: HOT}, 10: {}, 11: {}}, "cuda"),  # for a moment, which cannot cost as much
        ({0: dict.fromkeys(range(RANKS), HOT), 11: dict.fromkeys(range(RANKS), HOT)}, "cuda"),  # as all are
        ({0: {5: HOT}, 11: {5: HOT}}, "cpu"),  # the rank does not use it
    ],
)
def test_no_blame_for_a_gpu_that_cannot_be_the_reason(tmp_path: Path, seconds: dict[int, Any], device: str) -> None:
    write(tmp_path, [steps(rank, slow=5, device=device) for rank in range(RANKS)])
    note(tmp_path, seconds)
    found = verdict(tmp_path)
    assert (found.kind, found.ranks) == ("straggler", (5,))
    assert "throttled" not in found.message


def test_a_gpu_that_fell_off_the_bus_is_lost(tmp_path: Path) -> None:
    """Its rank never comes to the next call, and the others have waited for it since before."""
    write(tmp_path, [steps(rank, slow=3, is_open=True) for rank in range(RANKS)])
    note(tmp_path, {0: {}, 11: {}, 12: {3: {"lost": "it has fallen off the bus"}}})
    found = verdict(tmp_path, "hung")
    assert (found.kind, found.ranks) == ("gpu-lost", (3,))
    assert found.message == "GPU 3 of rank 3 on host-1 is lost: it has fallen off the bus"


def test_errors_of_gpus_and_what_nccl_says_are_told_with_a_hang(tmp_path: Path) -> None:
    write(tmp_path, [steps(rank, slow=3, is_open=True) for rank in range(RANKS)])
    note(tmp_path, {0: {}, 9: {3: {"xids": [48]}}, 10: {3: {"uncorrected_errors": 2}}})
    said = "Job summary\n===========\n\n\nErrors\n======\n\nDEAD\n  1 job process is considered dead\n  Rank 3\n\n"
    (tmp_path / "rings" / "attempt-0" / NCCL_RAS.format(host="host-1")).write_text(f"{said}Warnings\n========\n\n")
    found = verdict(tmp_path, "hung")
    assert (found.kind, found.ranks) == ("missing-rank", (3,))
    assert "; GPU 3 of rank 3 reported Xid 48 at " in found.message
    assert " and 1 more error; NCCL says: DEAD: 1 job process is considered dead Rank 3" in found.message

"""What the timeline draws, from ops whose times are known."""

import numpy as np
import pytest

from rollcall.explain.evidence import Evidence
from rollcall.timeline import model
from tests.report.rings import FakeOp, run


def test_bars_go_by_rank_and_time() -> None:
    """Each rank's ops in the order in which they blocked it; what happened besides communication is no bar."""
    ops = [FakeOp("phase", 1, 0, 90, phase="load"), FakeOp("barrier", 1, 20, 30), FakeOp("barrier", 2, 40, 50)]
    bars = model.draw(Evidence(run([ops, ops])))
    assert bars.rank.tolist() == [0, 0, 1, 1]
    assert (np.diff(bars.begin_ns[:2]) > 0).all()


def test_ops_of_one_call_have_one_number() -> None:
    """A send and its receive are one call, too; an op without partner is one of its own."""
    sends = [FakeOp("send", 1, 20, 22, peer=1), FakeOp("send", 2, 30, 31, peer=1), FakeOp("barrier", 1, 60, 70)]
    recvs = [FakeOp("recv", 1, 0, 23, peer=0), FakeOp("barrier", 1, 60, 70)]
    call = model.draw(Evidence(run([sends, recvs]))).call.tolist()
    assert call[0] == call[3]
    assert call[2] == call[4]
    assert len(set(call)) == 3


def test_phases_are_bands() -> None:
    """What a program gives a name is a band from its beginning to its end, and one that is open lasts."""
    phases = [
        FakeOp("phase", 1, 0, 15, phase="forward"),
        FakeOp("phase", 2, 20, phase="backward"),
        FakeOp("all_reduce", 1, 30, 40, phase="backward"),
    ]
    evidence = Evidence(run([phases, phases]))
    found = model.bands(evidence, model.draw(evidence))
    assert [band.name for band in found] == ["forward", "backward"]
    assert [(band.end_ns - band.begin_ns) // 1_000_000 for band in found] == [15, 20]


def test_of_very_many_samples_the_longest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of time."""
    monkeypatch.setattr(model, "_MOST_SAMPLES", 2)
    samples = [FakeOp("sample", 0, at, at + length) for at, length in ((0, 30), (50, 1), (60, 20))]
    found = model.samples(Evidence(run([samples])))
    assert (found.length_ns // 1_000_000).tolist() == [30, 20]


@pytest.mark.parametrize("mix", [0x9E3779B97F4A7C15, 0])
def test_kinds_are_what_ops_have_in_common(monkeypatch: pytest.MonkeyPatch, mix: int) -> None:
    """Ops that differ in anything but their time are of different kinds, also if their hashes are the same."""
    monkeypatch.setattr(model, "_MIX", np.uint64(mix))
    ops = [
        FakeOp("all_reduce", 1, 0, 5),
        FakeOp("all_reduce", 2, 10, 15),
        FakeOp("all_reduce", 3, 20, 25, size_bytes=8),
        FakeOp("all_gather", 4, 30, 35, size_bytes=8),
        FakeOp("all_gather", 5, 40, 45, size_bytes=8, phase="forward"),
    ]
    evidence = Evidence(run([ops]))
    bars = model.draw(evidence)
    found = model.kinds(evidence, bars)
    assert len(found.descriptions) == 4
    assert [found.descriptions[number]["op"] for number in found.number] == [op.op for op in ops]
    assert [found.descriptions[number]["bytes"] for number in found.number] == [op.size_bytes for op in ops]
    assert found.number[0] == found.number[1]

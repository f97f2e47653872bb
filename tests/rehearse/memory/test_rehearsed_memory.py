"""What a rehearsal says of memory and traffic, where both can be computed by hand."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollcall.protocol.plan import Program
from rollcall.rehearse import forked_ranks, rehearsal, terminal
from rollcall.rehearse.memory.use import CATEGORIES, CONTEXT_BYTES
from rollcall.rehearse.network.link import Link
from rollcall.rehearse.rehearsal import Rehearsal
from rollcall.rehearse.settings import GPUS, Gpu, RehearsalSettings
from rollcall.worker.fork_server import ForkServer

PROGRAM = Path(__file__).parents[1] / "programs" / "memory.py"
MIB = 1 << 20
WEIGHT = 4 * MIB  # of 1024 × 1024 float32
CUBLAS = 32 * MIB  # of each of two threads, on this GPU


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    started = forked_ranks.start_server(rehearsal.build_library())
    yield started
    started.close()


def rehearse(server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> Rehearsal:
    monkeypatch.setenv("ROLLCALL_DIR", str(tmp_path))
    settings = RehearsalSettings(4, 2, (0, 1, 2, 3), 0, gpu, link=Link(0.001, 1e9))
    return rehearsal.run(settings, Program("script", str(PROGRAM), ()), server)


def test_memory_and_traffic_are_what_they_are_by_hand(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = rehearse(server, tmp_path, monkeypatch, GPUS["h200"])
    (found,) = outcome.memory
    sizes = dict(zip(CATEGORIES, found.use.peak.size_bytes, strict=True))
    line = PROGRAM.read_text().split("# PEAK")[0].count("\n") + 1
    assert found.ranks == (0, 1, 2, 3)
    assert (found.use.peak.place, found.use.peak.phase) == (f"memory.py:{line}", "backward")
    assert (sizes["parameters"], sizes["optimizer"]) == (WEIGHT, WEIGHT)
    # DDP makes its bucket anew before the second step, and nccl still keeps the first; the third is the gradient.
    assert sizes["gradients"] == 3 * WEIGHT
    assert sizes["other"] >= 2 * CUBLAS
    assert found.use.allocated_bytes == sum(sizes.values()) <= found.use.reserved_bytes
    assert found.use.least_bytes == found.use.allocated_bytes - WEIGHT  # if nccl has dropped the first bucket by then
    assert outcome.traffic.is_step
    assert outcome.traffic.matrix == {(0, 1): 2 * 3 / 4 * WEIGHT, (1, 0): 2 * 3 / 4 * WEIGHT}
    said = "\n".join(terminal.lines(outcome))
    assert "(ranks 0-3), at memory.py" in said
    assert f"in all_reduce at memory.py:{line} (DDP, 1 bucket)" in said
    assert "estimate  5.29 ms to 6.29 ms of communication a step cannot hide" in said
    last = (outcome.folder / "logs" / "attempt-0" / "rank-0.log").read_text().split()[-1]
    assert int(last) == found.use.allocated_bytes  # as torch.cuda.max_memory_allocated says it


def test_a_card_that_is_too_small_is_told_with_the_line(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(GPUS["h200"], memory_bytes=CONTEXT_BYTES + 60 * MIB, reported_gib=0.0)
    outcome = rehearse(server, tmp_path, monkeypatch, small)
    said = "\n".join(terminal.lines(outcome))
    assert not outcome.fits
    assert not outcome.is_well
    assert outcome.explanation.verdict is None
    assert "does not fit: ranks 0-3 run out of memory at memory.py:" in said

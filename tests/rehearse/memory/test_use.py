"""What ranks need of their GPUs, in words."""

from dataclasses import replace

from rollcall.rehearse.memory.use import GpuContents, MemoryUse, fit, lines, merge
from rollcall.rehearse.settings import Gpu

CARD = Gpu("a card", 24 << 30, capability=(9, 0), processors=132)
PEAK = GpuContents("train.py:28", "backward", (2 << 30, 1 << 30, 0, 0, 0))
USE = MemoryUse(PEAK, 3 << 30, 3 << 30, 4 << 30)


def test_needs_that_read_the_same_are_one_line() -> None:
    """Ranks whose course differs, but not what is printed of it."""
    other_course = replace(USE, timeline=((0, "forward", (1, 0, 0, 0, 0)),))
    larger = replace(USE, allocated_bytes=5 << 30)
    found = merge([(0, USE), (1, other_course), (2, larger), (3, USE)])
    assert [line.partition(" GiB (")[2].partition(")")[0] for line in lines(found, CARD)] == ["rank 2", "ranks 0-1,3"]


def test_a_peak_that_differs_from_run_to_run_is_a_range() -> None:
    (line,) = lines(merge([(0, replace(USE, least_bytes=2 << 30))]), CARD)
    assert "peak 2.00 to 3.00 GiB of 24.0 GiB (rank 0)" in line


def test_whether_it_fits_is_judged_by_the_larger_end() -> None:
    close = replace(USE, least_bytes=2 << 30, allocated_bytes=int(23.3 * 2**30))
    assert fit(close, CARD) == "close"

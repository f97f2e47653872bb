"""How much GPU memory ranks need, and whether it fits. Ranks with equal needs are printed as one line.

A rank does not fit if the model of the allocator (`allocator`) needed more than the card has.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.rehearse.settings import Gpu

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "other")
# What a process takes from the card besides torch's allocator: the CUDA context and the kernels that were loaded.
CONTEXT_BYTES = 640 << 20
# The model of allocated memory is right within 2 %: a need that is closer than that to the limit does not count as
# fitting.
_SURE = 0.98
_FEW = 4


@dataclass(frozen=True)
class GpuContents:
    """One moment of a rank: where its program was, and what lived on the GPU, by category."""

    place: str  # train.py:28
    phase: str
    size_bytes: tuple[int, ...]  # in the order of CATEGORIES

    @property
    def total_bytes(self) -> int:
        return sum(self.size_bytes)


@dataclass(frozen=True)
class MemoryUse:
    """The memory that one rank needs, on the GPU that it used most."""

    peak: GpuContents
    least_bytes: int  # at its peak, if nccl has dropped all buckets that DDP has reduced
    allocated_bytes: int  # at the peak, rounded up as the allocator does, if nccl keeps these buckets as long as it may
    reserved_bytes: int  # the most that the allocator took from the card
    overflow: GpuContents | None = None  # the first moment at which the card had no room
    timeline: tuple[tuple[int, str, tuple[int, ...]], ...] = ()  # how many allocations before, phase, by category


@dataclass(frozen=True)
class RanksUse:
    """Ranks that need the same."""

    ranks: tuple[int, ...]
    use: MemoryUse


def usable_bytes(gpu: Gpu) -> int:
    """How much memory of a card torch's allocator can use."""
    return gpu.capacity_bytes - CONTEXT_BYTES


def merge(by_rank: Iterable[tuple[int, MemoryUse | None]]) -> tuple[RanksUse, ...]:
    """The largest need first."""
    merged: dict[MemoryUse, list[int]] = defaultdict(list)
    for rank, use in by_rank:
        if use is not None:
            merged[use].append(rank)
    found = [RanksUse(tuple(sorted(ranks)), use) for use, ranks in merged.items()]
    return tuple(sorted(found, key=lambda each: (-each.use.allocated_bytes, each.ranks)))


def fit(use: MemoryUse, gpu: Gpu) -> str:
    return fits_within(use.overflow is not None, use.allocated_bytes, usable_bytes(gpu))


def fits_within(has_overflowed: bool, allocated_bytes: int, limit_bytes: int) -> str:
    """`yes`, `no`, or `close`: it fits if the model is exactly right."""
    if has_overflowed:
        return "no"
    return "yes" if allocated_bytes <= _SURE * limit_bytes else "close"


def lines(found: tuple[RanksUse, ...], gpu: Gpu) -> Iterator[str]:
    found = _merge_alike(found, gpu)
    for each in found[:_FEW]:
        yield f"memory    {_in_words(each, gpu)}"
    if len(found) > _FEW:
        rest = sorted(rank for each in found[_FEW:] for rank in each.ranks)
        yield f"memory    {ranks_in_words(rest)} need less"


def _merge_alike(found: tuple[RanksUse, ...], gpu: Gpu) -> tuple[RanksUse, ...]:
    """Needs that are printed alike become one: they differ over time only, or by less than is printed."""
    alike: dict[str, RanksUse] = {}
    for each in found:
        words = _in_words(replace(each, ranks=()), gpu)
        first = alike.get(words, replace(each, ranks=()))
        alike[words] = replace(first, ranks=tuple(sorted((*first.ranks, *each.ranks))))
    return tuple(alike.values())


def _in_words(each: RanksUse, gpu: Gpu) -> str:
    use, who = each.use, ranks_in_words(each.ranks)
    card = f"{_gib(gpu.capacity_bytes)} GiB ({who})"
    if not _gib(use.allocated_bytes):
        return f"peak 0 GiB of {card}: next to nothing"
    peak = f"peak {_range(use.least_bytes, use.allocated_bytes)} GiB of {card}, at {_where(use.peak)}"
    reserved = f"{_gib(use.reserved_bytes)} reserved"
    if use.overflow is not None:
        return f"does not fit: {who} run out of memory at {_where(use.overflow)}; {peak}"
    close = "; this is too close to the card to be sure" if fit(use, gpu) == "close" else ""
    return f"{peak}; {reserved}{close}"


def _range(least_bytes: int, most_bytes: int) -> str:
    least, most = _gib(least_bytes), _gib(most_bytes)
    return most if least == most else f"{least} to {most}"


def _where(moment: GpuContents) -> str:
    parts = [f"{name} {_gib(size)}" for name, size in zip(CATEGORIES, moment.size_bytes, strict=True) if _gib(size)]
    phase = f" in {moment.phase}" if moment.phase else ""
    return f"{moment.place}{phase}: {', '.join(parts)}"


def _gib(size_bytes: int) -> str:
    """Formats bytes as torch's own messages do; empty if it is nothing at this precision."""
    size = size_bytes / 2**30
    digits = 1 if size >= 10 else 2 if size >= 0.1 else 3
    return f"{size:.{digits}f}" if size >= 0.0005 else ""


def as_json(found: tuple[RanksUse, ...], gpu: Gpu, with_timeline: bool = False) -> list[dict[str, Any]]:
    return [_one_as_json(each, gpu, with_timeline) for each in found]


def _one_as_json(each: RanksUse, gpu: Gpu, with_timeline: bool) -> dict[str, Any]:
    use = asdict(each.use)
    if not with_timeline:
        del use["timeline"]
    return {"ranks": list(each.ranks), "fits": fit(each.use, gpu), **use}


def write(path: Path, found: tuple[RanksUse, ...], gpu: Gpu) -> None:
    """Writes the data for the page, with the memory over time."""
    content = {"categories": CATEGORIES, "gpu_bytes": gpu.capacity_bytes, "uses": as_json(found, gpu, True)}
    path.write_text(json.dumps(content))

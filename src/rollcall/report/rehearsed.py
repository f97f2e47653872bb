"""What `rollcall rehearse` leaves for the page: memory of the GPUs over time, and bytes between hosts."""

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.units import in_binary_bytes, in_bytes

MEMORY_FILE, TRAFFIC_FILE = "memory.json", "traffic.json"
_MOST_CURVES = 4  # the others need less


@dataclass(frozen=True)
class MemoryCurve:
    """Memory over time, of ranks that need the same. A point is the highest moment of a stretch of allocations."""

    ranks: tuple[int, ...]
    peak: str
    numbers: tuple[int, ...]  # how many allocations there were before each point
    phases: tuple[str, ...]
    size_bytes: tuple[tuple[int, ...], ...]  # by point, in the order of the categories


@dataclass(frozen=True)
class RehearsedResults:
    categories: tuple[str, ...]
    gpu_bytes: int
    curves: tuple[MemoryCurve, ...]  # the largest need first
    ranks_left_out: tuple[int, ...]  # whose curves are not shown
    hosts: int
    traffic: dict[str, Any]  # as `rollcall rehearse --json` has it

    @property
    def goes_between_hosts(self) -> bool:
        return bool(self.traffic["between_hosts"])


def read(folder: Path) -> RehearsedResults | None:
    """None if the run was not rehearsed."""
    if not (folder / MEMORY_FILE).is_file() or not (folder / TRAFFIC_FILE).is_file():
        return None
    memory, traffic = (json.loads((folder / name).read_text()) for name in (MEMORY_FILE, TRAFFIC_FILE))
    uses = memory["uses"]
    return RehearsedResults(
        categories=tuple(memory["categories"]),
        gpu_bytes=memory["gpu_bytes"],
        curves=tuple(map(_curve, uses[:_MOST_CURVES])),
        ranks_left_out=tuple(sorted(rank for use in uses[_MOST_CURVES:] for rank in use["ranks"])),
        hosts=traffic["hosts"],
        traffic=traffic,
    )


def _curve(use: dict[str, Any]) -> MemoryCurve:
    numbers, phases, sizes = zip(*use["timeline"], strict=True) if use["timeline"] else ((), (), ())
    return MemoryCurve(tuple(use["ranks"]), _peak(use), numbers, phases, tuple(map(tuple, sizes)))


def _peak(use: dict[str, Any]) -> str:
    peak, overflow = use["peak"], use["overflow"]
    least, most = (in_binary_bytes(use[key]) for key in ("least_bytes", "allocated_bytes"))
    size = most if least == most else f"{least} to {most}"
    words = f"peak {size} at {peak['place']} in {peak['phase']}"
    return f"{words}; it does not fit: no room at {overflow['place']} in {overflow['phase']}" if overflow else words


def memory_section(found: RehearsedResults) -> str:
    curves = "".join(
        f"<h3>{escape(ranks_in_words(curve.ranks))}: {escape(curve.peak)}</h3><div id=memory-plot-{number}></div>"
        for number, curve in enumerate(found.curves)
    )
    left_out = f'<p class="hint">{escape(ranks_in_words(found.ranks_left_out))} need less.</p>'
    return (
        '<section id="memory"><h2>Memory</h2><p class="hint">What lives on the GPU of a rank, by a model of torch\'s'
        f" allocator. The card has {in_binary_bytes(found.gpu_bytes)}.</p>"
        f"{curves or '<p>No rank uses its GPU.</p>'}{left_out if found.ranks_left_out else ''}</section>"
    )


def traffic_section(found: RehearsedResults) -> str:
    when = "one step" if found.traffic["of"] == "step" else "the whole run"
    heads = ("op", "line", "ops", "between hosts", "over the busiest link")
    head = "".join(f'<th class="{"text" if name in ("op", "line") else ""}">{name}</th>' for name in heads)
    rows = "".join(map(_row, found.traffic["calls"]))
    table = (
        '<div class="scroll"><table class="sortable" id="between-hosts">'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    shown = '<div id="hosts-plot"></div>' if found.goes_between_hosts else "<p>Nothing goes from host to host.</p>"
    return (
        f'<section id="hosts"><h2>Traffic between hosts</h2><p class="hint">Bytes of {when}, {_how(found.traffic)}.</p>'
        f'<div class="two"><div>{shown}</div><div>{table}</div></div></section>'
    )


def _how(traffic: dict[str, Any]) -> str:
    words = {"nccl": "by the formula of nccl's rings", "gloo": "by gloo's algorithms"}
    return escape(" and ".join(words[each] for each in traffic["backends"]) or "computed")


def _row(call: dict[str, Any]) -> str:
    name = f"{call['op']}{' by DDP' * call['is_bucket']}"
    text = "".join(f'<td class="text">{escape(each)}</td>' for each in (name, call["place"]))
    sizes = "".join(
        f'<td data-value="{call[key]:.9g}">{in_bytes(call[key])}</td>' for key in ("size_bytes", "busiest_bytes")
    )
    return f'<tr>{text}<td data-value="{call["count"]}">{call["count"]:,}</td>{sizes}</tr>'

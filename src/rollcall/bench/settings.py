"""What to measure, and with which options: one value, which is passed to every rank."""

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict

from rollcall.bench import sizes
from rollcall.errors import UsageError

OPS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_one_way",
    "send_two_way",
    "barrier",
)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")
Placement = Literal["out", "in"]
Groups = tuple[tuple[int, ...], ...]  # ranks; the groups have no rank in common
PLACES: dict[str, tuple[Placement, ...]] = {"both": ("out", "in"), "out": ("out",), "in": ("in",)}


class RecordedCall(BaseModel):
    """An op of a recorded run: how often it was called, and how long it took once all ranks were there."""

    model_config = ConfigDict(frozen=True)

    op: str
    size_bytes: int
    groups: Groups  # that call it at the same time
    count: int
    recorded_s: float


class BenchSettings(BaseModel):
    """The options of one benchmark."""

    model_config = ConfigDict(frozen=True)

    ops: tuple[str, ...] = OPS
    sizes_bytes: tuple[int, ...] = sizes.steps(sizes.SMALLEST, sizes.LARGEST)
    dtypes: tuple[str, ...] = ("float32",)
    places: tuple[Placement, ...] = ("out", "in")
    backend: str | None = None
    warmup: int = 5
    iterations: int = 1000  # at most, over all rounds
    max_time_s: float = 60.0
    groups: Groups = ()  # that call each op at the same time; empty: all ranks are one group
    queue: bool | None = None  # one synchronisation after all calls; None: on GPUs
    graph: bool = False  # all calls of a measurement are one CUDA graph
    check: bool = True
    like: tuple[RecordedCall, ...] = ()  # measured instead of ops and sizes


def parse_groups(text: str, ranks: int) -> Groups:
    """`rows:2x4` or `columns:2x4`, of a mesh of 2 rows of 4 ranks."""
    match = re.fullmatch(r"(rows|columns):(\d+)x(\d+)", text)
    if match is None:
        raise UsageError(f"--groups {text} is not known: use rows:2x4 or columns:2x4, for a mesh of 2 rows of 4 ranks")
    rows, columns = int(match[2]), int(match[3])
    if rows * columns != ranks:
        raise UsageError(f"--groups {text} has {rows * columns} ranks, and there are {ranks}: use numbers that fit")
    mesh = [tuple(range(row * columns, (row + 1) * columns)) for row in range(rows)]
    groups = tuple(mesh) if match[1] == "rows" else tuple(zip(*mesh, strict=True))
    if len(groups[0]) < 2:
        raise UsageError(f"--groups {text} makes groups of one rank: use groups of 2 ranks or more")
    return groups


def check_names(kind: str, names: list[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """The names, each once, in their order; if there are none, all known names."""
    for name in names:
        if name not in known:
            raise UsageError(f"{name} is not {kind} that can be measured: use {', '.join(known)}")
    return tuple(dict.fromkeys(names)) or known

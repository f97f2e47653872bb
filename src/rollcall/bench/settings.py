"""What to measure, and with which options: one value, which is passed to every rank."""

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
PLACES: dict[str, tuple[Placement, ...]] = {"both": ("out", "in"), "out": ("out",), "in": ("in",)}


class BenchSettings(BaseModel):
    """The options of one benchmark."""

    model_config = ConfigDict(frozen=True)

    ops: tuple[str, ...] = OPS
    sizes_bytes: tuple[int, ...] = sizes.steps_of_four(sizes.SMALLEST, sizes.LARGEST)
    dtypes: tuple[str, ...] = ("float32",)
    places: tuple[Placement, ...] = ("out", "in")
    backend: str | None = None
    warmup: int = 5
    iterations: int = 1000  # at most, over all rounds
    max_time_s: float = 60.0


def check_names(kind: str, names: list[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """The names, each once, in their order; if there are none, all known names."""
    for name in names:
        if name not in known:
            raise UsageError(f"{name} is not {kind} that can be measured: use {', '.join(known)}")
    return tuple(dict.fromkeys(names)) or known

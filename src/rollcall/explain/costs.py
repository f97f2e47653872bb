"""Where the time of communication goes: by op, by line, by phase; and how much of it was hidden behind computing."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcall.explain.load import Run
from rollcall.explain.table import Table
from rollcall.record import ring_format


@dataclass(frozen=True)
class Cost:
    """Of all ranks together. A rank is blocked in an op, or the op is in flight while the rank does something else."""

    name: str
    ops: int
    size_bytes: int
    blocked_s: float
    hidden_s: float


@dataclass(frozen=True)
class Costs:
    by_op: tuple[Cost, ...]
    by_site: tuple[Cost, ...]
    by_phase: tuple[Cost, ...]
    blocked_s: float
    hidden_s: float

    @property
    def overlap(self) -> float:
        """The part of communication that cost no time."""
        whole_s = self.blocked_s + self.hidden_s
        return self.hidden_s / whole_s if whole_s else 0.0


def count(run: Run) -> Costs:
    table = run.table
    rows = np.flatnonzero(~table.is_event & (table.completed_ns > 0) & ~table.is_one_of("init", "new_group", "ddp"))
    is_async = table.is_async[rows]
    blocked_from = np.where(is_async, table.waited_ns[rows], table.entered_ns[rows])
    blocked = np.where(blocked_from > 0, table.completed_ns[rows] - blocked_from, 0)
    hidden = np.where(is_async & (blocked_from > 0), np.clip(blocked_from - table.issued_ns[rows], 0, None), 0)
    names = table.names

    def group(numbers: NDArray[np.uint32], name: Callable[[int], str]) -> tuple[Cost, ...]:
        return _group(table, rows, numbers, name, blocked, hidden)

    return Costs(
        group(table.op[rows].astype(np.uint32), lambda number: ring_format.OPS[number]),
        group(table.site[rows], lambda number: str(names.sites[number] or "?")),
        group(table.phase[rows], lambda number: names.phases[number] or "(none)"),
        float(blocked.sum()) / 1e9,
        float(hidden.sum()) / 1e9,
    )


def _group(
    table: Table,
    rows: NDArray[np.intp],
    numbers: NDArray[np.uint32],
    name: Callable[[int], str],
    blocked: NDArray[np.int64],
    hidden: NDArray[np.int64],
) -> tuple[Cost, ...]:
    """One cost per name, the largest first."""
    kinds, place = np.unique(numbers, return_inverse=True)
    size = len(kinds)
    if not size:
        return ()
    counts = np.bincount(place, minlength=size)
    sizes = np.bincount(place, table.size_bytes[rows], minlength=size)
    blocked_ns, hidden_ns = np.bincount(place, blocked, minlength=size), np.bincount(place, hidden, minlength=size)
    return tuple(
        Cost(
            name(int(kinds[n])),
            int(counts[n]),
            int(sizes[n]),
            float(blocked_ns[n]) / 1e9,
            float(hidden_ns[n]) / 1e9,
        )
        for n in np.argsort(-blocked_ns, kind="stable")
    )

"""A run as tables, for Python: `rollcall.load(run)` and `rollcall.explain(run)`.

A table is a DataFrame of pandas or polars, where one of them is installed, else a list of dicts.
"""

import importlib.util
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from rollcall.explain.evidence import Evidence
from rollcall.explain.html import as_html
from rollcall.explain.loading.load import Run
from rollcall.explain.loading.load import load as load_run
from rollcall.explain.loading.table import Table
from rollcall.explain.terminal import print_explanation
from rollcall.explain.verdict import Explanation, explain_run, in_words, to_json
from rollcall.record import ring_format
from rollcall.runs import find_recording

_LIBRARIES = ("pandas", "polars")
_WIDTH = 120  # of the text, wherever it is shown


def load(run: str | os.PathLike[str] | None = None, attempt: int | None = None) -> "LoadedRun":
    """The recording of a run as tables: `ops`, a row per op, and `ranks`, a row per rank. `run` is its name or folder,
    by default that of the newest; `attempt` is by default the last.

    ops = rollcall.load().ops
    """
    return LoadedRun(load_run(_folder(run), attempt))


def explained(run: str | os.PathLike[str] | None = None, attempt: int | None = None) -> "Explained":
    """What `rollcall explain` says: a `verdict`, and tables of `findings`, `waits`, `communication`, `deaths`."""
    return Explained(load(run, attempt))


def _folder(run: str | os.PathLike[str] | None) -> Any:
    return find_recording(None if run is None else os.fspath(run))


@dataclass(frozen=True)
class LoadedRun:
    """One attempt of a run."""

    run: Run

    @property
    def name(self) -> str:
        return self.run.name

    @cached_property
    def evidence(self) -> Evidence:
        return Evidence(self.run)

    @cached_property
    def ops(self) -> Any:
        """A row per op. `waited_s`: how long its rank waited in it for another one, `waited_for`: for which (-1: for
        none, or for one that never came). Times are in ns by the launcher's monotonic clock, 0 if it never came to
        that."""
        table, found = self.run.table, self.evidence.intervals
        rows = np.flatnonzero(~table.is_event)
        last = found.last[rows]
        is_late = (last >= 0) & (found.waiting_ns[rows] > 0)
        columns = _columns(table, rows)
        columns["waited_s"] = found.waiting_ns[rows] / 1e9
        columns["waited_for"] = np.where(is_late, table.rank[np.maximum(last, 0)], -1)
        return frame(columns)

    @cached_property
    def ranks(self) -> Any:
        """A row per rank: where it ran, and how it ended."""
        names = ("host", "pid", "dropped", "exit_code", "error")
        return frame_of_rows(
            [
                {"rank": rank.number, "ops": len(rank.ops), **{name: getattr(rank, name) for name in names}}
                for rank in self.run.ranks.values()
            ]
        )

    def __repr__(self) -> str:
        run = self.run
        return f"<run {run.name}, attempt {run.attempt}: {run.outcome}, {len(run.ranks)} of {run.world_size} ranks>"


def _columns(table: Table, rows: NDArray[np.intp]) -> dict[str, NDArray[Any]]:
    """By name, of these rows: what a record has by number is taken from the list of its names."""
    names = table.names
    named = {
        "op": (table.op, ring_format.OPS),
        "group": (table.group, [group.name for group in names.groups]),
        "site": (table.site, [f"{site.file}:{site.line}" if site else "" for site in names.sites]),
        "function": (table.site, [site.function if site else "" for site in names.sites]),
        "phase": (table.phase, names.phases),
    }
    columns: dict[str, NDArray[Any]] = {"rank": table.rank[rows]}
    columns |= {name: np.array(values, dtype=object)[numbers[rows]] for name, (numbers, values) in named.items()}
    columns |= {name: getattr(table, name)[rows] for name in ("seq", "peer", "size_bytes")}
    columns |= {"is_async": table.is_async[rows], "has_failed": table.has_failed[rows]}
    times = ("entered_ns", "issued_ns", "waited_ns", "completed_ns")
    return columns | {name: getattr(table, name)[rows] for name in times}


@dataclass(frozen=True)
class Explained:
    """What happened in a run; in a notebook it is shown as such."""

    loaded: LoadedRun

    @cached_property
    def explanation(self) -> Explanation:
        return explain_run(self.loaded.evidence)

    @property
    def outcome(self) -> str:
        return self.explanation.outcome

    @property
    def verdict(self) -> str:
        """Which rank, which call, which line, and why; empty if nothing was found."""
        found = self.explanation.verdict
        return in_words(found) if found else ""

    @cached_property
    def findings(self) -> Any:
        kept = ("kind", "ranks", "message", "op", "group", "seq", "sites", "effect")
        rows = [{name: getattr(each, name) for name in kept} for each in self.explanation.findings]
        return frame_of_rows([{**row, "sites": [str(site) for site in row["sites"]]} for row in rows], kept)

    @cached_property
    def waits(self) -> Any:
        """Who waited for whom: a row per rank."""
        return frame_of_rows(self.to_dict()["waits"])

    @cached_property
    def communication(self) -> Any:
        """Where communication takes its time: a row per op, line and phase."""
        costs = self.to_dict()["communication"]
        kinds = {"by_op": "op", "by_site": "line", "by_phase": "phase"}
        return frame_of_rows([{"by": kind, **row} for name, kind in kinds.items() for row in costs[name]])

    @cached_property
    def deaths(self) -> Any:
        return frame_of_rows([asdict(death) for death in self.explanation.deaths], ("rank", "how", "after_s"))

    def to_dict(self) -> dict[str, Any]:
        """Returns what `rollcall explain --json` prints."""
        return to_json(self.explanation)

    def __str__(self) -> str:
        text = io.StringIO()
        console = Console(file=text, highlight=False, width=_WIDTH, soft_wrap=True, force_jupyter=False)
        print_explanation(console, self.explanation)
        return text.getvalue().rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self.explanation)


def frame(columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> Any:
    """A table of columns: of the library that the program has imported, else of one that is installed."""
    library = _library()
    if library is None:
        lists = [list(column) for column in columns.values()]
        return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
    # Lists: polars does not take texts from arrays of objects.
    plain = {name: column.tolist() if isinstance(column, np.ndarray) else column for name, column in columns.items()}
    return importlib.import_module(library).DataFrame(plain)


def frame_of_rows(rows: Sequence[dict[str, Any]], names: Sequence[str] = ()) -> Any:
    """`names`: the columns of a table that may have no row."""
    return frame({name: [row[name] for row in rows] for name in (rows[0] if rows else names)})


def _library() -> str | None:
    imported = [name for name in _LIBRARIES if name in sys.modules]
    installed = (name for name in _LIBRARIES if importlib.util.find_spec(name) is not None)
    return imported[0] if imported else next(installed, None)

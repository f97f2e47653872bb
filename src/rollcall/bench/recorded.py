"""The ops, sizes and groups of a recorded run, to be measured again without the program: is it the network?"""

from pathlib import Path

import numpy as np

from rollcall.bench.settings import Groups, RecordedCall
from rollcall.errors import UsageError
from rollcall.explain.evidence import Evidence
from rollcall.explain.loading.load import Run, load
from rollcall.record import ring_format
from rollcall.runs import all_runs, recorded_attempts, runs_home

_MEASURED = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
_MOST_CALLS = 40  # kinds of calls, those that took the most time
_Key = tuple[str, int, tuple[int, ...]]


def find_newest() -> Path | None:
    """The newest run that was recorded: a benchmark is a run too, and has no recording."""
    folders = (runs_home() / str(facts["name"]) for facts in reversed(list(all_runs())))
    return next((folder for folder in folders if recorded_attempts(folder)), None)


def read_calls(folder: Path) -> tuple[int, tuple[RecordedCall, ...]]:
    """The number of ranks of the run, and its calls: those that took the most time first."""
    run = load(folder, None)
    times_s = _times(run)
    if not times_s:
        raise UsageError(f"{folder} has no collective that can be measured: choose another run")
    calls = [
        RecordedCall(
            op=op, size_bytes=size, groups=groups, count=len(found) // len(groups), recorded_s=float(np.median(found))
        )
        for (op, size, groups), found in _at_once(times_s).items()
    ]
    return run.world_size, tuple(sorted(calls, key=lambda call: -call.count * call.recorded_s)[:_MOST_CALLS])


def _times(run: Run) -> dict[_Key, list[float]]:
    """Returns for each op, size and group how long each call took once all its ranks were there."""
    table, taken_ns = run.table, Evidence(run).intervals.communicating_ns
    found: dict[_Key, list[float]] = {}
    is_complete = ~table.is_event & ~table.is_blocked & ~table.has_failed
    for row in np.flatnonzero(is_complete).tolist():
        op, group = ring_format.OPS[table.op[row]], table.names.groups[table.group[row]]
        # Of one rank: the others made the same call.
        if op in _MEASURED and len(group.ranks) > 1 and table.rank[row] == group.ranks[0]:
            size = int(table.size_bytes[row]) * (len(group.ranks) if op == "all_gather" else 1)
            if size or op == "barrier":
                found.setdefault((op, size, group.ranks), []).append(float(taken_ns[row]) / 1e9)
    return found


def _at_once(times_s: dict[_Key, list[float]]) -> dict[tuple[str, int, Groups], list[float]]:
    """Groups without a common rank that made as many calls of the same size, as rows of a mesh do, go together."""
    merged: dict[tuple[str, int, Groups], list[float]] = {}
    for (op, size, ranks), found in times_s.items():
        for key in merged:
            groups = key[2]
            is_alike = key[:2] == (op, size) and len(groups[0]) == len(ranks)
            is_as_often = len(merged[key]) == len(found) * len(groups)
            if is_alike and is_as_often and not set(ranks) & {rank for group in groups for rank in group}:
                merged[op, size, (*groups, ranks)] = merged.pop(key) + found
                break
        else:
            merged[op, size, (ranks,)] = list(found)
    return merged

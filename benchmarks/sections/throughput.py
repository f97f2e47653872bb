"""Samples a second of the same training in each library, on two ranks, after a first epoch that is not counted."""

import argparse
import json
import sys
from dataclasses import dataclass
from statistics import median

from rich.table import Table

from contenders import HERE, PEERS, PROGRAMS
from jobs import Jobs
from results import Goal, Result, how_it_failed, progress, table

RANKS = 2
WORKLOADS = ("MLP", "CNN", "transformer")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]


@dataclass(frozen=True)
class Library:
    """One way to write the loop. All are started by torchrun, so that only the loops differ."""

    name: str
    program: str
    python: str

    def command(self) -> list[str]:
        return [self.python, *TORCHRUN, str(PROGRAMS / "training" / self.program)]


RAW = Library("raw DDP loop", "raw.py", sys.executable)
OURS = Library("rollcall.Trainer", "with_rollcall.py", str(HERE / "python"))
LIBRARIES = (
    RAW,
    Library("Lightning Fabric", "with_fabric.py", str(PEERS / "bin" / "python")),
    Library("Accelerate", "with_accelerate.py", str(PEERS / "bin" / "python")),
    OURS,
)

Epochs = dict[str, list[float]]  # seconds, by library


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    here = [each for each in LIBRARIES if PEERS.exists() or each.python.startswith(str(HERE))]
    if len(here) < len(LIBRARIES):
        progress("the peers are left out: `make bench-train` installs them")
    taken = {workload: _alternate(jobs, here, workload, options) for workload in options.workloads}
    goals = [goal for workload, epochs in taken.items() for goal in _judge(workload, epochs)]
    return Result([_table(taken)], goals, dict(taken))


def _alternate(jobs: Jobs, libraries: list[Library], workload: str, options: argparse.Namespace) -> Epochs:
    taken: Epochs = {each.name: [] for each in libraries}
    for number in range(options.rounds):
        # Who comes first changes: a machine that warms up would favour the later ones.
        for each in libraries[number % len(libraries) :] + libraries[: number % len(libraries)]:
            epochs = _run(jobs, each, workload, options.timeout_s)
            taken[each.name] += epochs
            said = f"{median(epochs):.3f} s an epoch" if epochs else "failed"
            progress(f"{workload}, {number + 1} of {options.rounds}: {each.name} {said}")
    return taken


def _run(jobs: Jobs, library: Library, workload: str, timeout_s: float) -> list[float]:
    # One thread for each rank, for all alike.
    with jobs.start(library.command(), ROLLCALL_WORKLOAD=workload, OMP_NUM_THREADS="1") as job:
        code = job.wait(timeout_s)
        path = job.folder / "epochs.json"
        if code != 0 or not path.exists():
            progress(f"{library.name} {how_it_failed(code)}:\n{job.last_words()}")
            return []
        return list(json.loads(path.read_text()))


def _judge(workload: str, epochs: Epochs) -> list[Goal]:
    share = {name: _relative(epochs, name) for name in epochs}
    own = share[OURS.name]
    goals = [
        Goal(f"{workload}: throughput of the raw loop", "≥ 0.99", _show(own), None if own is None else own >= 0.99)
    ]
    for name, other in share.items():
        if name not in (RAW.name, OURS.name):
            met = None if own is None or other is None else own >= other
            goals.append(Goal(f"{workload}: against {name}", f"≥ {_show(other)}", _show(own), met))
    return goals


def _relative(epochs: Epochs, name: str) -> float | None:
    """Of the raw loop's throughput. Fastest against fastest: what disturbs a machine only ever takes time."""
    return min(epochs[RAW.name]) / min(epochs[name]) if epochs[RAW.name] and epochs[name] else None


def _show(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _table(taken: dict[str, Epochs]) -> Table:
    made = table(
        f"Throughput on {RANKS} ranks, of the raw loop's (fastest epoch)", "", *(each.name for each in LIBRARIES)
    )
    for workload, epochs in taken.items():
        cells = []
        for each in LIBRARIES:
            seconds = epochs.get(each.name)
            cells.append(f"{_show(_relative(epochs, each.name))}  {min(seconds):.3f} s" if seconds else "–")
        made.add_row(workload, *cells)
    return made

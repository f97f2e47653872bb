"""Samples a second of the same training in each library, on two ranks: an epoch of one, an epoch of the next, …"""

import argparse
import contextlib
import os
import select
import time
from dataclasses import dataclass
from statistics import median

from rich.table import Table

from contenders import HERE, PEERS, PROGRAMS
from jobs import Job, Jobs
from results import Goal, Result, how_it_failed, progress, table

RANKS = 2
WORKLOADS = ("MLP", "CNN", "transformer")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]


@dataclass(frozen=True)
class Library:
    """One library. All programs are started by torchrun, so that only the training loops differ."""

    name: str
    program: str
    is_peer: bool = False

    def command(self) -> list[str]:
        """All in one environment: the same raw loop was 2 % faster in the peers' than in ours."""
        python = PEERS / "bin" / "python" if PEERS.exists() else HERE / "python"
        return [str(python), *TORCHRUN, str(PROGRAMS / "training" / self.program)]


RAW = Library("raw DDP loop", "raw.py")
OURS = Library("rollcall.Trainer", "with_rollcall.py")
LIBRARIES = (
    RAW,
    Library("Lightning Fabric", "with_fabric.py", is_peer=True),
    Library("Accelerate", "with_accelerate.py", is_peer=True),
    OURS,
)

Epochs = dict[str, list[float]]  # seconds, by library, round by round


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    here = [each for each in LIBRARIES if PEERS.exists() or not each.is_peer]
    if len(here) < len(LIBRARIES):
        progress("the peers are left out: `make bench-train` installs them")
    taken = {workload: _alternate(jobs, here, workload, options) for workload in options.workloads}
    goals = [goal for workload, epochs in taken.items() for goal in _judge(workload, epochs)]
    return Result([_table(taken)], goals, dict(taken))


def _alternate(jobs: Jobs, libraries: list[Library], workload: str, options: argparse.Namespace) -> Epochs:
    """All are started several times: memory layout makes a process a few percent faster or slower."""
    taken: Epochs = {each.name: [] for each in libraries}
    for _ in range(options.starts):
        _take_turns(jobs, libraries, workload, options, taken)
    rounds = options.starts * options.rounds
    whole = {name: seconds if len(seconds) == rounds else [] for name, seconds in taken.items()}
    for name, seconds in whole.items():
        progress(f"{workload}: {name} {f'{median(seconds):.3f} s an epoch' if seconds else 'failed'}")
    return whole


def _take_turns(
    jobs: Jobs, libraries: list[Library], workload: str, options: argparse.Namespace, taken: Epochs
) -> None:
    """All run at the same time, and take turns."""
    with contextlib.ExitStack() as running:
        turns = {each: Turns(jobs, each, workload, 1 + options.rounds) for each in libraries}
        for each in turns.values():
            running.enter_context(each)
        for number in range(1 + options.rounds):
            # The order changes, since a library may profit from running after a slow one.
            shift = number % len(libraries)
            for each in libraries[shift:] + libraries[:shift]:
                took_s = turns[each].take(options.timeout_s)
                if number and took_s is not None:  # the first epoch is not counted
                    taken[each.name].append(took_s)


class Turns:
    """One library at work, which waits for its turn before each epoch. The other end is programs/training's."""

    def __init__(self, jobs: Jobs, library: Library, workload: str, epochs: int) -> None:
        self._library = library
        self._folder = jobs.new_folder()
        for name in ("go", "took"):
            os.mkfifo(self._folder / name)
        self._go, self._took = (os.open(self._folder / name, os.O_RDWR) for name in ("go", "took"))
        # One thread for each rank, for all alike.
        self._job: Job = jobs.start(
            library.command(),
            ROLLCALL_WORKLOAD=workload,
            ROLLCALL_TURNS=str(self._folder),
            ROLLCALL_EPOCHS=str(epochs),
            OMP_NUM_THREADS="1",
        )
        self._failed = False

    def __enter__(self) -> "Turns":
        return self

    def __exit__(self, *_: object) -> None:
        self._job.__exit__()
        for fd in (self._go, self._took):
            os.close(fd)

    def take(self, timeout_s: float) -> float | None:
        """Run one epoch: its seconds, or None if it failed."""
        if self._failed:
            return None
        os.write(self._go, b"." * RANKS)
        deadline_s = time.monotonic() + timeout_s
        while not select.select([self._took], [], [], 0.5)[0]:
            code = self._job.wait(0)
            if code is not None or time.monotonic() > deadline_s:
                progress(f"{self._library.name} {how_it_failed(code)}:\n{self._job.last_words()}")
                self._failed = True
                return None
        return float(os.read(self._took, 4096))


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
    """Throughput relative to the raw loop, by round, so that disturbances affect all."""
    shares = [raw_s / own_s for raw_s, own_s in zip(epochs[RAW.name], epochs[name], strict=False)]
    return median(shares) if shares else None


def _show(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _table(taken: dict[str, Epochs]) -> Table:
    made = table(
        f"Throughput on {RANKS} ranks, of the raw loop's (median of the rounds)", "", *(each.name for each in LIBRARIES)
    )
    for workload, epochs in taken.items():
        cells = []
        for each in LIBRARIES:
            seconds = epochs.get(each.name)
            cells.append(f"{_show(_relative(epochs, each.name))}  {median(seconds):.3f} s" if seconds else "–")
        made.add_row(workload, *cells)
    return made

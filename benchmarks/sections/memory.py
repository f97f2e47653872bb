"""The memory of many ranks: PSS, so that a page shared by n processes counts once in the sum."""

import argparse
import time
from dataclasses import asdict, dataclass

from contenders import ROLLCALL, TORCHRUN, Contender
from jobs import Job, Jobs, pss_bytes
from results import Goal, Result, at_least, progress, ratio, table, times

GOAL = 4.0  # times less than torchrun
SETTLE_S = 1.0
MB = 1e6


@dataclass(frozen=True)
class Memory:
    """The memory of one run: of the ranks alone, and with the processes of the launcher."""

    ranks_bytes: int
    all_bytes: int
    processes: int


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    ranks = options.memory_ranks
    found = {each.name: _read(jobs, each, ranks, options.timeout_s) for each in (TORCHRUN, ROLLCALL)}
    ranks_less, all_less = _times_less(found[TORCHRUN.name], found[ROLLCALL.name])
    made = table(f"Memory of {ranks} ranks (PSS, summed)", "", "the ranks", "all processes")
    for name, memory in found.items():
        made.add_row(name, *_cells(memory))
    made.add_row("times less", times(ranks_less), times(all_less))
    # The stricter comparison: the launcher's own memory is counted.
    goal = Goal(f"memory of {ranks} ranks, launcher included", "≤ 1/4", _fraction(all_less), at_least(all_less, GOAL))
    return Result([made], [goal], {name: memory and asdict(memory) for name, memory in found.items()})


def _read(jobs: Jobs, contender: Contender, ranks: int, timeout_s: float) -> Memory | None:
    with jobs.start(contender.command(ranks, "sit_still.py")) as job:
        ready = job.wait_for_files([f"ready-{rank}" for rank in range(ranks)], timeout_s)
        if not ready:
            progress(f"{contender.name}: not all of {ranks} ranks came through:\n{job.last_words()}")
            return None
        time.sleep(SETTLE_S)
        memory = _sum(job, [int(pid) for pid in ready.values()])
        progress(f"{contender.name} with {ranks} ranks: {memory.all_bytes / MB:,.0f} MB")
        (job.folder / "go").touch()
        job.wait(timeout_s)
        return memory


def _sum(job: Job, ranks: list[int]) -> Memory:
    pss = {process.pid: pss_bytes(process.pid) for process in job.processes()}
    return Memory(sum(pss[pid] for pid in ranks), sum(pss.values()), len(pss))


def _cells(memory: Memory | None) -> tuple[str, str]:
    if memory is None:
        return "failed", "failed"
    return f"{memory.ranks_bytes / MB:,.0f} MB", f"{memory.all_bytes / MB:,.0f} MB ({memory.processes})"


def _times_less(theirs: Memory | None, ours: Memory | None) -> tuple[float | None, float | None]:
    if theirs is None or ours is None:
        return None, None
    return ratio(theirs.ranks_bytes, ours.ranks_bytes), ratio(theirs.all_bytes, ours.all_bytes)


def _fraction(times_less: float | None) -> str:
    return "–" if times_less is None else f"1/{times_less:.1f}"

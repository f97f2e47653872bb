"""How long it takes to rehearse 1,024 ranks, and how much memory all its processes use."""

import argparse
import time
from dataclasses import asdict, dataclass

from contenders import PROGRAMS, ROLLCALL
from jobs import Job, Jobs, pss_bytes
from results import Goal, Result, how_it_failed, progress, seconds, table

LOOK_S = 0.5
_GB = 1e9


@dataclass(frozen=True)
class Case:
    name: str
    words: tuple[str, ...]  # options, program, its arguments
    most_s: float
    most_bytes: float


CASES = (
    Case("small DDP, all 1,024 ranks", ("-n", "1024", "small_ddp.py"), 120, 4 * _GB),
    Case(
        "FSDP2 of 7 billion parameters, 1,024 ranks, by kinds",
        ("-n", "1024", "--classes", "large_fsdp.py"),
        180,
        2 * _GB,
    ),
)


@dataclass(frozen=True)
class Speed:
    wall_s: float
    peak_bytes: int


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    made = table("Rehearsing 1,024 ranks", "", "time", "memory (PSS, all processes)")
    goals, figures = [], {}
    for case in CASES:
        found = _run(jobs, case, options.timeout_s)
        wanted = f"≤ {case.most_s / 60:g} min, ≤ {case.most_bytes / _GB:g} GB"
        if found is None:
            goals.append(Goal(case.name, wanted, "failed", False))
            continue
        figures[case.name] = asdict(found)
        said = seconds(found.wall_s), f"{found.peak_bytes / _GB:.2f} GB"
        made.add_row(case.name, *said)
        is_met = found.wall_s <= case.most_s and found.peak_bytes <= case.most_bytes
        goals.append(Goal(case.name, wanted, ", ".join(said), is_met))
    return Result([made], goals, figures)


def _run(jobs: Jobs, case: Case, timeout_s: float) -> Speed | None:
    *options, program = case.words
    began_s = time.monotonic()
    with jobs.start([str(ROLLCALL.executable), "rehearse", *options, str(PROGRAMS / program)]) as job:
        peak_bytes = 0
        while job.runs() and time.monotonic() - began_s < timeout_s:
            peak_bytes = max(peak_bytes, _memory(job))
            time.sleep(LOOK_S)
        code = job.wait(1.0)
        wall_s = time.monotonic() - began_s
        if code != 0:
            progress(f"{case.name} {how_it_failed(code)}:\n{job.last_words()}")
            return None
        progress(f"{case.name}: {wall_s:.0f} s, {peak_bytes / _GB:.2f} GB")
        return Speed(wall_s, peak_bytes)


def _memory(job: Job) -> int:
    return sum(pss_bytes(process.pid) for process in job.processes())

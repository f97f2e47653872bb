"""Ranks at work: ops of gloo and a small DDP step, with as many ranks as cores, and with twice as many."""

import argparse
import json
import os

from contenders import ROLLCALL, TORCHRUN, Contender
from jobs import Jobs
from results import Result, how_it_failed, median_or_none, progress, ratio, table, times

Figures = dict[str, float]


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    cores = len(os.sched_getaffinity(0))
    found: dict[int, dict[str, list[Figures]]] = {}
    for ranks in (cores, 2 * cores):
        found[ranks] = {TORCHRUN.name: [], ROLLCALL.name: []}
        for number in range(options.steady_repeats):
            for contender in (TORCHRUN, ROLLCALL):
                progress(f"{contender.name}, {ranks} ranks, run {number + 1} of {options.steady_repeats}")
                if figures := _run(jobs, contender, ranks, options.timeout_s):
                    found[ranks][contender.name].append(figures)
    made = table(f"Ranks at work on {cores} cores (gloo, one thread each)", "", "ranks", "torchrun", "rollcall run", "")
    for ranks, runs in found.items():
        for what in dict.fromkeys(what for figures in (*runs[TORCHRUN.name], *runs[ROLLCALL.name]) for what in figures):
            theirs, ours = (
                median_or_none([figures[what] for figures in runs[each.name]]) for each in (TORCHRUN, ROLLCALL)
            )
            made.add_row(what, str(ranks), _us(theirs), _us(ours), times(ratio(theirs, ours)))
    return Result([made], [], {str(ranks): runs for ranks, runs in found.items()})


def _run(jobs: Jobs, contender: Contender, ranks: int, timeout_s: float) -> Figures | None:
    with jobs.start(contender.command(ranks, "steady.py"), OMP_NUM_THREADS="1") as job:
        code = job.wait(timeout_s)
        if code != 0:
            progress(f"{contender.name} {how_it_failed(code)}:\n{job.last_words()}")
            return None
        figures: Figures = json.loads((job.folder / "steady.json").read_text())
        return figures


def _us(value: float | None) -> str:
    return "failed" if value is None else f"{value:,.0f} µs"

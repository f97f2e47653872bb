"""From the command to the end of the first all_reduce of the last rank, for each launcher in turn."""

import argparse

import psutil
from rich.table import Table

from contenders import ALL, ROLLCALL, TORCHRUN, Contender
from jobs import Jobs
from results import Goal, Result, at_least, how_it_failed, median_or_none, progress, ratio, seconds, table, times

GOALS = {2: 2.0, 8: 5.0, 16: 10.0, 64: 15.0}  # ranks: times faster than torchrun
REPEATS = {2: 5, 8: 5, 16: 3, 64: 2}
BYTES_PER_RANK = 200 << 20  # of a rank with an interpreter and a torch of its own

Times = dict[str, list[float | None]]  # by launcher; None for a start that failed


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    contenders = [each for each in ALL if _is_here(each)]
    for each in contenders:  # not counted: it fills the page cache for all alike
        _start(jobs, each, 2, options.timeout_s)
    taken = {ranks: _alternate(jobs, contenders, ranks, options) for ranks in options.ranks}
    return Result([_table(contenders, taken)], _goals(taken), {str(ranks): row for ranks, row in taken.items()})


def _is_here(contender: Contender) -> bool:
    if not contender.is_here:
        progress(f"{contender.name} is left out: there is no {contender.executable} (`make bench` installs it)")
    return contender.is_here


def _alternate(jobs: Jobs, contenders: list[Contender], ranks: int, options: argparse.Namespace) -> Times:
    """A B C D, A B C D, …: if the machine is slow for a while, all are slower."""
    repeats = options.repeats or REPEATS.get(ranks, 3)
    taken: Times = {each.name: [] for each in contenders if _fits(each, ranks)}
    for number in range(1, repeats + 1):
        for each in contenders:
            if each.name in taken:
                took_s = _start(jobs, each, ranks, options.timeout_s)
                progress(f"{ranks} ranks, {number} of {repeats}: {each.name} {seconds(took_s)}")
                taken[each.name].append(took_s)
    return taken


def _fits(contender: Contender, ranks: int) -> bool:
    needed, free = ranks * BYTES_PER_RANK, psutil.virtual_memory().available
    if contender is not ROLLCALL and needed > free:
        progress(f"{contender.name} is left out: {ranks} ranks need {needed >> 30} GiB, {free >> 30} are free")
        return False
    return ranks <= contender.most_ranks


def _start(jobs: Jobs, contender: Contender, ranks: int, timeout_s: float) -> float | None:
    with jobs.start(contender.command(ranks, "first_all_reduce.py")) as job:
        code = job.wait(timeout_s)
        done_ns = job.numbers("done-*")
        if code != 0 or len(done_ns) != ranks:
            progress(f"{contender.name} {how_it_failed(code)}; {len(done_ns)} of {ranks} ranks came through:")
            progress(job.last_words())
            return None
        return (max(done_ns) - job.started_ns) / 1e9


def _table(contenders: list[Contender], taken: dict[int, Times]) -> Table:
    made = table("Command to end of first all_reduce (× faster than torchrun)", "ranks")
    for each in contenders:
        made.add_column(each.name, justify="right")
    for ranks, row in taken.items():
        made.add_row(str(ranks), *(_cell(row, each.name) for each in contenders))
    return made


def _cell(row: Times, name: str) -> str:
    if name not in row:
        return "–"
    own, base = median_or_none(row[name]), median_or_none(row.get(TORCHRUN.name, []))
    failed = f"  ({row[name].count(None)} failed)" if own is not None and None in row[name] else ""
    return f"{seconds(own)}  {times(ratio(base, own)):>6}{failed}"


def _goals(taken: dict[int, Times]) -> list[Goal]:
    goals = []
    for ranks, row in taken.items():
        if ranks in GOALS:
            faster = ratio(median_or_none(row.get(TORCHRUN.name, [])), median_or_none(row[ROLLCALL.name]))
            goals.append(
                Goal(
                    f"command to first all_reduce, {ranks} ranks",
                    f"≥ {GOALS[ranks]:g} × faster",
                    times(faster),
                    at_least(faster, GOALS[ranks]),
                )
            )
    return goals

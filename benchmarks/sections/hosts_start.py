"""Several ssh hosts: from the command to the end of the first all_reduce of the last rank, each launcher in turn."""

import argparse

from rich.table import Table

from host_contenders import ALL, BY_HAND, OURS, TORCHRUNX, Contender, Start
from jobs import Jobs
from results import Goal, Result, at_least, how_it_failed, median_or_none, progress, ratio, seconds, table, times
from ssh_hosts import opened, settle, why_none

GOAL = 3.0  # times faster than either of the others,
GOAL_SIZE = (8, 2)  # on so many hosts, with so many ranks each
LEAVE_S = 3.0  # so long may what runs on the hosts outlive its launcher

Times = dict[str, list[float | None]]  # by launcher; None for a start that failed


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    if reason := why_none():
        progress(f"left out: {reason}")
        return Result([], _goals(options, {}))
    contenders = [each for each in ALL if _is_here(each)]
    with opened(options.hosts + 1) as cluster:  # the last one is the login node, where the commands are given
        few, full = (Start(cluster, cluster.hosts[:n], options.ranks_per_host) for n in (1, options.hosts))
        for each in contenders:  # not counted: it fills the page cache for all alike
            _start(jobs, each, few, options.timeout_s)
        taken = _alternate(jobs, contenders, full, options)
    return Result([_table(full, taken)], _goals(options, taken), {"seconds": taken})


def _is_here(contender: Contender) -> bool:
    if not contender.is_here:
        progress(f"{contender.name} is left out: it is not installed (`make bench-hosts` does that)")
    return contender.is_here


def _alternate(jobs: Jobs, contenders: list[Contender], start: Start, options: argparse.Namespace) -> Times:
    """A B C, A B C, …: if the machine is slow for a while, all are slower."""
    taken: Times = {each.name: [] for each in contenders}
    for number in range(1, options.repeats + 1):
        for each in contenders:
            took_s = _start(jobs, each, start, options.timeout_s)
            progress(f"{number} of {options.repeats}: {each.name} {seconds(took_s)}")
            taken[each.name].append(took_s)
    return taken


def _start(jobs: Jobs, contender: Contender, start: Start, timeout_s: float) -> float | None:
    login = start.cluster.hosts[-1]
    env = {**start.cluster.env, **contender.env}
    with jobs.start([*login.enter, *contender.command(start)], **env) as job:
        code = job.wait(timeout_s)
        left = settle(start.cluster, LEAVE_S)
        if left:
            progress(f"{contender.name} left {len(left)} processes running on the hosts")
        done_ns = job.numbers("done-*")
        if code != 0 or len(done_ns) != start.ranks:
            progress(f"{contender.name} {how_it_failed(code)}; {len(done_ns)} of {start.ranks} ranks came through:")
            progress(job.last_words())
            return None
        return (max(done_ns) - job.started_ns) / 1e9


def _table(start: Start, taken: Times) -> Table:
    made = table(
        f"{_size(len(start.hosts), start.ranks_per_host)} on this machine: command to end of first all_reduce",
        *("", "median", "shortest", "longest", "failed", f"{OURS.name} is faster by"),
    )
    for name, took_s in taken.items():
        measured = [each for each in took_s if each is not None]
        made.add_row(
            name,
            seconds(median_or_none(took_s)),
            seconds(min(measured, default=None)),
            seconds(max(measured, default=None)),
            str(took_s.count(None)),
            times(_faster(taken, name)) if name != OURS.name else "",
        )
    return made


def _faster(taken: Times, name: str) -> float | None:
    return ratio(median_or_none(taken.get(name, [])), median_or_none(taken.get(OURS.name, [])))


def _goals(options: argparse.Namespace, taken: Times) -> list[Goal]:
    size = (options.hosts, options.ranks_per_host)
    if size != GOAL_SIZE:
        return []
    goals = []
    for each in (BY_HAND, TORCHRUNX):
        faster = _faster(taken, each.name)
        what = f"{_size(*size)}, against {each.name}"
        goals.append(Goal(what, f"≥ {GOAL:g} × faster", times(faster), at_least(faster, GOAL)))
    return goals


def _size(hosts: int, ranks_per_host: int) -> str:
    return f"{hosts} ssh hosts × {ranks_per_host} ranks"

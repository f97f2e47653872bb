"""A rank or a host is lost while all ranks work: how soon do they work again, and does it always come to that?"""

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import psutil
from rich.table import Table

from host_contenders import ELASTIC, IN_SLURM, ON_VIRTUAL_HOSTS, RESTARTS, WITH_SPARE, Start
from jobs import Job, Jobs
from results import Goal, Result, median_or_none, progress, seconds, table
from ssh_hosts import Cluster, Slurm, opened, settle, why_no_slurm, why_none

HOSTS, RANKS_PER_HOST = 3, 2
LOST = 1  # by place: the first one has the rendezvous of torchrun, and the last one is our spare
LOST_RANK = LOST * RANKS_PER_HOST
NEXT_STEP_S = 60.0  # then it does not recover
LEAVE_S = 15.0  # so long may what runs on the hosts outlive its launcher
FASTER = 2.0

RANK, KILLED, CUT = "a rank is killed", "a host: all its processes are killed", "a host: its network is cut"
Fault = Callable[[Job], None]


@dataclass(frozen=True)
class Place:
    """Where ranks run, and who started them there."""

    name: str
    words: list[str]
    env: dict[str, str]
    ranks: int  # at first
    faults: dict[str, Fault]

    def ranks_after(self, fault: str) -> int:
        """torchrun goes on without a lost host; a spare takes its place with us."""
        return self.ranks if fault == RANK else (HOSTS - 1) * RANKS_PER_HOST


@dataclass(frozen=True)
class Try:
    place: str
    fault: str
    seconds: float | None  # from the loss to the next all_reduce of all ranks; None: it did not come
    left_behind: int  # processes on the hosts that are left


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    if reason := why_none():
        progress(f"left out: {reason}")
        return Result([], [Goal("a lost rank or host: the next step came", "every time", "left out", None)])
    tries = []
    with opened(HOSTS + 1) as cluster, contextlib.ExitStack() as stack:  # the last host is the login node
        if reason := why_no_slurm():
            progress(f"SLURM is left out: {reason}")
        slurm = None if reason else stack.enter_context(Slurm(cluster, HOSTS))
        for number in range(1, options.losses + 1):
            for place in _places(cluster, slurm):
                for fault in place.faults:
                    tries.append(_try(jobs, cluster, place, fault, options.timeout_s))
                    progress(f"{number} of {options.losses}: {place.name}, {fault}: {seconds(tries[-1].seconds)}")
    return Result([_table(tries)], _goals(tries), {"tries": [asdict(each) for each in tries]})


def _places(cluster: Cluster, slurm: Slurm | None) -> list[Place]:
    start = Start(cluster, cluster.hosts[:HOSTS], RANKS_PER_HOST)
    lost, few, all_ranks = start.hosts[LOST], (HOSTS - 1) * RANKS_PER_HOST, start.ranks
    login = cluster.hosts[-1].enter
    by_host: dict[str, Fault] = {
        RANK: kill_rank,
        KILLED: lambda _: kill(lost.processes()),
        CUT: lambda _: lost.cut(),
    }
    found = [
        Place("torchrun, elastic, by ssh", [*login, *ELASTIC.command(start)], cluster.env, all_ranks, by_host),
        Place("rollcall run, by ssh", [*login, *WITH_SPARE.command(start)], cluster.env, few, by_host),
    ]
    if slurm is not None:
        found.append(Place("rollcall run, in SLURM", IN_SLURM.command(start), slurm.env, few, by_host))
    # Agents of virtual hosts are reached without their network: it may be cut, and they are not lost.
    virtual: dict[str, Fault] = {RANK: kill_rank, KILLED: kill_virtual_host}
    return [*found, Place("rollcall run, on virtual hosts", ON_VIRTUAL_HOSTS.command(start), {}, few, virtual)]


def kill_rank(job: Job) -> None:
    os.kill(_pid(job), signal.SIGKILL)


def kill_virtual_host(job: Job) -> None:
    """Rank, fork server, agent: each the child of the next."""
    agent = psutil.Process(_pid(job)).parents()[1]
    kill([agent, *agent.children(recursive=True)])


def kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _pid(job: Job) -> int:
    return int((job.folder / f"attempt-0/busy-{LOST_RANK}").read_text())


def _try(jobs: Jobs, cluster: Cluster, place: Place, fault: str, timeout_s: float) -> Try:
    with jobs.start(place.words, **place.env) as job:
        took_s = _next_step_s(job, place, fault, timeout_s)
        if took_s is None:
            progress(f"{place.name} did not come to its next step:\n{job.last_words()}")
        else:
            job.wait(timeout_s)
        for host in cluster.hosts:
            host.heal()
        left = settle(cluster, LEAVE_S) if took_s is not None else []
    cluster.restore()
    settle(cluster, LEAVE_S)
    return Try(place.name, fault, took_s, len(left))


def _next_step_s(job: Job, place: Place, fault: str, timeout_s: float) -> float | None:
    if not job.wait_for_files([f"attempt-0/busy-{rank}" for rank in range(place.ranks)], timeout_s):
        return None
    lost_ns = time.time_ns()
    place.faults[fault](job)
    deadline_s = time.monotonic() + NEXT_STEP_S
    while time.monotonic() < deadline_s and (code := job.wait(0)) in (None, 0):
        for attempt in range(1, RESTARTS + 1):
            if len(list(job.folder.glob(f"attempt-{attempt}/finished-*"))) == place.ranks_after(fault):
                return (max(job.numbers(f"attempt-{attempt}/first-*")) - lost_ns) / 1e9
        if code == 0:
            return None
        time.sleep(0.05)
    return None


def _of(tries: list[Try], place: str, fault: str) -> list[Try]:
    return [each for each in tries if (each.place, each.fault) == (place, fault)]


def _table(tries: list[Try]) -> Table:
    made = table(
        f"{HOSTS} hosts × {RANKS_PER_HOST} ranks, one of rollcall's is a spare: time to the next step of all ranks",
        *("", "", "recovered", "median", "longest", "left running"),
    )
    for fault, place in sorted({(each.fault, each.place): None for each in tries}):
        found = _of(tries, place, fault)
        took_s = [each.seconds for each in found if each.seconds is not None]
        made.add_row(
            fault,
            place,
            f"{len(took_s)} of {len(found)}",
            seconds(median_or_none(took_s)),
            seconds(max(took_s, default=None)),
            str(sum(each.left_behind for each in found)),
        )
    return made


def _goals(tries: list[Try]) -> list[Goal]:
    ours = [each for each in tries if each.place.startswith("rollcall")]
    good = sum(each.seconds is not None and not each.left_behind for each in ours)
    their_s, our_s = (
        median_or_none([each.seconds for each in _of(tries, place, KILLED)])
        for place in ("torchrun, elastic, by ssh", "rollcall run, by ssh")
    )
    faster = their_s / our_s if our_s and their_s else None
    said = seconds(our_s) if faster is None else f"{faster:.1f} ×"
    return [
        Goal("a lost rank or host: the next step came", "every time", f"{good} of {len(ours)}", good == len(ours)),
        Goal("a killed host: time to it, by ssh", f"≥ {FASTER:g} × faster", said, faster and faster >= FASTER),
    ]

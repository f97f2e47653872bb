"""One of four ranks is killed with SIGKILL: does the restart succeed, and how soon do all ranks work again?"""

import argparse
import math
import os
import signal
import time
from dataclasses import asdict, dataclass

from rich.table import Table

from contenders import ROLLCALL, TORCHRUN, TORCHRUN_UNSHARED, Contender
from jobs import Job, Jobs
from results import Goal, Result, how_it_failed, median_or_none, progress, seconds, table

RANKS = 4
RESTARTS = 3


@dataclass(frozen=True)
class Try:
    """One run with a killed rank."""

    killed_rank: int
    exit_code: int | None = None  # None: it took too long and was ended
    attempt: int | None = None  # the one that every rank finished
    seconds: float | None = None  # from the kill to the first all_reduce of that attempt
    left_behind: int = 0  # processes that were left after the command

    @property
    def at_once(self) -> bool:
        return self.exit_code == 0 and self.attempt == 1

    @property
    def in_the_end(self) -> bool:
        return self.exit_code == 0 and self.attempt is not None


Tries = dict[Contender, list[Try]]


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    wanted = dict.fromkeys((TORCHRUN, TORCHRUN_UNSHARED), options.torchrun_tries) | {ROLLCALL: options.tries}
    tries = take_turns(jobs, wanted, options.try_timeout_s, dict.fromkeys(wanted, "keep_reducing.py"))
    usual_s = {each: median_or_none([one.seconds for one in done]) for each, done in tries.items()}
    fastest_s = min(usual_s[each] or math.inf for each in (TORCHRUN, TORCHRUN_UNSHARED))
    goals = [_every_time(tries[ROLLCALL]), _sooner(fastest_s, usual_s[ROLLCALL])]
    return Result(
        [show(tries, "SIGKILL of one of 4 ranks")],
        goals,
        {each.name: [asdict(one) for one in done] for each, done in tries.items()},
    )


def take_turns(jobs: Jobs, wanted: dict[Contender, int], timeout_s: float, programs: dict[Contender, str]) -> Tries:
    """In turn; those with fewer tries are spread evenly."""
    tries: Tries = {contender: [] for contender in wanted}
    most = max(wanted.values())
    for number in range(most):
        for contender, count in wanted.items():
            done = len(tries[contender])
            if done < count and number >= done * most // count:
                one = _try(jobs, contender, programs[contender], done % RANKS, timeout_s)
                tries[contender].append(one)
                progress(f"{done + 1} of {count}: {contender.name} {_describe(one)}")
    return tries


def show(tries: Tries, title: str) -> Table:
    made = table(
        f"{title}, --max-restarts {RESTARTS}",
        *("", "tries", "recovered at first restart", "at any", "time (median)", "longest", "left running"),
    )
    for contender, done in tries.items():
        took_s = [one.seconds for one in done if one.seconds is not None]
        made.add_row(
            contender.name,
            str(len(done)),
            str(sum(one.at_once for one in done)),
            str(sum(one.in_the_end for one in done)),
            seconds(median_or_none(took_s)),
            seconds(max(took_s, default=None)),
            str(sum(one.left_behind for one in done)),
        )
    return made


def _try(jobs: Jobs, contender: Contender, program: str, rank: int, timeout_s: float) -> Try:
    deadline_s = time.monotonic() + timeout_s
    with jobs.start(contender.command(RANKS, program, f"--max-restarts={RESTARTS}"), **contender.env) as job:
        busy = job.wait_for_files([f"attempt-0/busy-{each}" for each in range(RANKS)], timeout_s)
        if not busy:
            progress(f"{contender.name} did not come to work:\n{job.last_words()}")
            return Try(rank, job.wait(0))
        killed_ns = time.time_ns()
        os.kill(int(busy[f"busy-{rank}"]), signal.SIGKILL)
        code = job.wait(deadline_s - time.monotonic())
        if code != 0:
            progress(f"{contender.name} did not recover:\n{job.last_words()}")
        left = 0 if code is None else job.left_behind()
        attempt = _finished_attempt(job)
        if code != 0 or attempt is None:
            return Try(rank, code, attempt, left_behind=left)
        first_ns = job.numbers(f"attempt-{attempt}/first-*")
        return Try(rank, code, attempt, (max(first_ns) - killed_ns) / 1e9, left)


def _finished_attempt(job: Job) -> int | None:
    for attempt in range(1, RESTARTS + 1):
        if len(list(job.folder.glob(f"attempt-{attempt}/finished-*"))) == RANKS:
            return attempt
    return None


def _describe(one: Try) -> str:
    if one.in_the_end:
        return f"recovered in {seconds(one.seconds)}, in attempt {one.attempt}"
    return how_it_failed(one.exit_code)


def _every_time(ours: list[Try]) -> Goal:
    good = sum(one.at_once for one in ours)
    return Goal(
        "recovery from SIGKILL, at the first restart", "every time", f"{good} of {len(ours)}", good == len(ours)
    )


def _sooner(their_s: float, our_s: float | None) -> Goal:
    theirs = "torchrun's, but it never did" if their_s == math.inf else f"torchrun's {seconds(their_s)}"
    return Goal("time to recover", f"< {theirs}", seconds(our_s), None if our_s is None else our_s < their_s)

"""`rollcall watch` beside a busy job: what the job loses, what the watching takes of a core."""

import argparse
import contextlib
import shlex
import time
from dataclasses import asdict, dataclass

import psutil

from contenders import HERE, ROLLCALL
from jobs import Job, Jobs
from results import Goal, Result, middle, progress, table

MOST_LOSS, MOST_CPU = 0.01, 0.05
_SETTLE_S = 4.0


@dataclass(frozen=True)
class Round:
    """One run of the job: ops a second of all ranks; with a watch, its share of a core."""

    ops_per_s: float
    cpu: float | None = None


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    ranks, pace = options.watch_ranks, options.watch_pace
    alone, watched = [], []
    for _ in range(options.watch_rounds):  # in turn: what else this machine does hits both
        for is_watched, rounds in ((False, alone), (True, watched)):
            if (found := _run(jobs, options, is_watched)) is not None:
                rounds.append(found)
    without, with_it = middle([each.ops_per_s for each in alone]), middle([each.ops_per_s for each in watched])
    cpu = middle([each.cpu for each in watched])
    loss = 1 - with_it / without if with_it and without else None
    made = table(f"rollcall watch: {ranks} ranks × {pace} ops/s each", "", "ops/s of all ranks", "CPU of the watch")
    made.add_row("alone", "–" if without is None else f"{without:,.0f}", "")
    made.add_row("watched", "–" if with_it is None else f"{with_it:,.0f}", _percent(cpu))
    goals = [
        Goal("watch: what the job loses", "≤ 1 %", _percent(loss), None if loss is None else loss <= MOST_LOSS),
        Goal("… of one core", "≤ 5 %", _percent(cpu), None if cpu is None else cpu <= MOST_CPU),
    ]
    figures = {"alone": [asdict(each) for each in alone], "watched": [asdict(each) for each in watched]}
    return Result([made], goals, figures)


def _run(jobs: Jobs, options: argparse.Namespace, is_watched: bool) -> Round | None:
    ranks = options.watch_ranks
    words = [*ROLLCALL.command(ranks, "keep_talking.py"), str(options.watch_s), str(options.watch_pace)]
    with jobs.start(words) as job, contextlib.ExitStack() as stack:
        if not job.wait_for_files([f"ready-{rank}" for rank in range(ranks)], options.timeout_s):
            progress(f"not all of {ranks} ranks came through:\n{job.last_words()}")
            return None
        cpu = None
        if is_watched:
            run = job.folder / "rollcall" / "runs" / "latest"
            # A table that refreshes needs a terminal: script(1) has one.
            watch = shlex.join([str(HERE / "rollcall"), "watch", str(run)])
            viewer = stack.enter_context(jobs.start(["script", "-qfc", watch, "/dev/null"], TERM="xterm-256color"))
            time.sleep(_SETTLE_S)  # its start does not count: it happens once
            (job.folder / "go").touch()
            cpu = _cpu_share(viewer, options.watch_s * 0.8)
        (job.folder / "go").touch()
        if job.wait(options.timeout_s) != 0:
            progress(f"the job failed:\n{job.last_words()}")
            return None
        done = sum(job.numbers("done-*"))
    progress(f"{'watched' if is_watched else 'alone'}: {done / options.watch_s:,.0f} ops/s {_percent(cpu)}")
    return Round(done / options.watch_s, cpu)


def _cpu_share(viewer: Job, during_s: float) -> float:
    before, began_s = _cpu_s(viewer), time.monotonic()
    time.sleep(during_s)
    return (_cpu_s(viewer) - before) / (time.monotonic() - began_s)


def _cpu_s(viewer: Job) -> float:
    total = 0.0
    for process in viewer.processes():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"

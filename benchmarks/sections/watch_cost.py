"""`rollcall watch` beside a busy job: what the job loses, what the watching takes of a core."""

import argparse
import contextlib
import json
import shlex
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import psutil

from contenders import HERE, ROLLCALL
from jobs import Job, Jobs
from results import Goal, Result, middle, progress, table

MOST_LOSS, MOST_CPU = 0.01, 0.05
WAYS = {"alone": "alone", "terminal": "watched", "web": "watched in a browser"}
_SETTLE_S = 4.0


@dataclass(frozen=True)
class Round:
    """One run of the job: ops a second of all ranks; with a watch, its share of a core."""

    ops_per_s: float
    cpu: float | None = None


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    ranks, pace = options.watch_ranks, options.watch_pace
    rounds: dict[str, list[Round]] = {way: [] for way in WAYS}
    for _ in range(options.watch_rounds):  # in turn: what else this machine does hits all
        for way in WAYS:
            if (found := _run(jobs, options, way)) is not None:
                rounds[way].append(found)
    made = table(f"rollcall watch: {ranks} ranks × {pace} ops/s each", "", "ops/s of all ranks", "CPU of the watch")
    without = middle([each.ops_per_s for each in rounds["alone"]])
    goals = []
    for way, found in rounds.items():
        ops_per_s, cpu = middle([each.ops_per_s for each in found]), middle([each.cpu for each in found])
        made.add_row(WAYS[way], "–" if ops_per_s is None else f"{ops_per_s:,.0f}", _percent(cpu))
        if way != "alone":
            loss = 1 - ops_per_s / without if ops_per_s and without else None
            goals += [
                Goal(
                    f"{WAYS[way]}: what the job loses",
                    "≤ 1 %",
                    _percent(loss),
                    None if loss is None else loss <= MOST_LOSS,
                ),
                Goal("… of one core", "≤ 5 %", _percent(cpu), None if cpu is None else cpu <= MOST_CPU),
            ]
    return Result([made], goals, {way: [asdict(each) for each in found] for way, found in rounds.items()})


def _run(jobs: Jobs, options: argparse.Namespace, way: str) -> Round | None:
    ranks = options.watch_ranks
    words = [*ROLLCALL.command(ranks, "keep_talking.py"), str(options.watch_s), str(options.watch_pace)]
    with jobs.start(words) as job, contextlib.ExitStack() as stack:
        if not job.wait_for_files([f"ready-{rank}" for rank in range(ranks)], options.timeout_s):
            progress(f"not all of {ranks} ranks came through:\n{job.last_words()}")
            return None
        cpu = None
        run = str(job.folder / "rollcall" / "runs" / "latest")
        if way == "terminal":
            # A table that refreshes needs a terminal: script(1) has one.
            watch = shlex.join([str(HERE / "rollcall"), "watch", run])
            viewer = stack.enter_context(jobs.start(["script", "-qfc", watch, "/dev/null"], TERM="xterm-256color"))
        elif way == "web":
            viewer = stack.enter_context(jobs.start([str(HERE / "rollcall"), "watch", run, "--web"]))
            stack.enter_context(_looking_on(viewer))
        if way != "alone":
            time.sleep(_SETTLE_S)  # its start does not count: it happens once
            (job.folder / "go").touch()
            cpu = _cpu_share(viewer, options.watch_s * 0.8)
        (job.folder / "go").touch()
        if job.wait(options.timeout_s) != 0:
            progress(f"the job failed:\n{job.last_words()}")
            return None
        done = sum(job.numbers("done-*"))
    progress(f"{WAYS[way]}: {done / options.watch_s:,.0f} ops/s {_percent(cpu)}")
    return Round(done / options.watch_s, cpu)


@contextlib.contextmanager
def _looking_on(viewer: Job) -> Iterator[None]:
    """Ask what the page in a browser asks, as often as the server lets it; a browser itself would take a core."""
    over = threading.Event()
    asking = threading.Thread(target=_ask, args=(viewer, over))
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()


def _ask(viewer: Job, over: threading.Event) -> None:
    said = viewer.folder / "output.txt"
    while not (said.exists() and "token=" in said.read_text()):
        if over.wait(0.1):
            return
    url = next(line for line in said.read_text().splitlines() if "token=" in line).strip()
    token = url.partition("?")[2]
    since_s, due_s = 0.0, {"news": 0.0, "explained": 0.0}
    with contextlib.suppress(OSError):  # the run, and with it the watch, may be over by now
        urllib.request.urlopen(url).read()
        while not over.wait(0.05):
            for name in due_s:
                if time.monotonic() < due_s[name]:
                    continue
                about = f"since={since_s}" if name == "news" else "seen=0"
                told = json.load(
                    urllib.request.urlopen(url.replace("/?", f"/{name}?").replace(token, f"{token}&{about}"))
                )
                due_s[name] = time.monotonic() + told["again"]
                if name == "news":
                    since_s = told["scene"]["told"]["duration"]


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

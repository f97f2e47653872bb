"""`rollcall watch` and `--metrics` beside a busy job: what the job loses, what the watching takes of a core."""

import argparse
import contextlib
import itertools
import json
import math
import shlex
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from statistics import median, quantiles

import psutil

from contenders import HERE, ROLLCALL
from jobs import Job, Jobs
from results import Goal, Result, progress, table
from rollcall.ports import find_free_port

MOST_LOSS, MOST_CPU = {"terminal": 0.01, "web": 0.01, "metrics": 0.005}, 0.05
WAYS = {"terminal": "watched", "web": "watched in a browser", "metrics": "with --metrics"}
_SCRAPE_S = 5.0  # Prometheus asks every 15 s, or more often where it is told to
_SETTLE_S = 4.0
_OPENING_S = 30.0
_WINDOW_S = 4


@dataclass(frozen=True)
class Found:
    """Of one run, window by window: ops a second of all ranks, while nobody looks and while somebody does."""

    alone: list[float]
    watched: list[float]
    cpu: float  # share of a core that the watch takes

    @property
    def losses(self) -> list[float]:
        """Of each window in which somebody looks, beside those before and after it."""
        pairs = zip(self.watched, itertools.pairwise(self.alone), strict=False)
        return [1 - 2 * watched / (before + after) for watched, (before, after) in pairs]


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    ranks, pace = options.watch_ranks, options.watch_pace
    made = table(
        f"rollcall watch: {ranks} ranks × {pace} ops/s each, ops/s of all ranks in windows of {_WINDOW_S} s",
        *("", "nobody looks", "somebody does", "less", "a quarter below", "a quarter above", "CPU of the watch"),
    )
    goals, figures = [], {}
    for way, name in WAYS.items():
        found, most = _run(jobs, options, way), MOST_LOSS[way]
        if found is None or len(found.losses) < 2:
            goals.append(Goal(f"{name}: what the job loses", f"≤ {_percent(most)}", "failed", None))
            continue
        low, loss, high = quantiles(found.losses, n=4)
        rates = [f"{median(each):,.0f}" for each in (found.alone, found.watched)]
        made.add_row(name, *rates, *map(_percent, (loss, low, high, found.cpu)))
        doubt = (high - low) / math.sqrt(len(found.losses))
        is_known = doubt <= most or loss > most + doubt
        met = loss <= most if is_known else None
        goals += [
            Goal(f"{name}: what the job loses", f"≤ {_percent(most)}", f"{_percent(loss)} ± {_percent(doubt)}", met),
            Goal("… of one core", "≤ 5 %", _percent(found.cpu), found.cpu <= MOST_CPU),
        ]
        figures[way] = asdict(found)
    return Result([made], goals, figures)


def _run(jobs: Jobs, options: argparse.Namespace, way: str) -> Found | None:
    ranks = options.watch_ranks
    seconds = options.watch_cpu_s + options.watch_s
    words = [*ROLLCALL.command(ranks, "keep_talking.py"), str(seconds), str(options.watch_pace)]
    address = f"127.0.0.1:{find_free_port()}"
    if way == "metrics":
        after = words.index("run") + 1
        words[after:after] = ["--metrics", address]
    with jobs.start(words) as job, contextlib.ExitStack() as stack:
        if not job.wait_for_files([f"ready-{rank}" for rank in range(ranks)], options.timeout_s):
            progress(f"not all of {ranks} ranks came through:\n{job.last_words()}")
            return None
        run = str(job.folder / "rollcall" / "runs" / "latest")
        (job.folder / "go").touch()
        viewer: Job | _MetricsOf
        if way == "terminal":
            # A table that refreshes needs a terminal: script(1) has one.
            watch = shlex.join([str(HERE / "rollcall"), "watch", run])
            viewer = stack.enter_context(jobs.start(["script", "-qfc", watch, "/dev/null"], TERM="xterm-256color"))
        elif way == "metrics":
            viewer = _MetricsOf(job)
            stack.enter_context(_scraping(f"http://{address}/metrics"))
        else:
            viewer = stack.enter_context(jobs.start([str(HERE / "rollcall"), "watch", run, "--web"]))
            stack.enter_context(_looking_on(viewer))
        time.sleep(_SETTLE_S)  # its start does not count: it happens once
        # Not in the windows: a watch that was stopped has to catch up.
        before_s = _cpu_s(viewer)
        time.sleep(options.watch_cpu_s)
        cpu = (_cpu_s(viewer) - before_s) / options.watch_cpu_s
        windows = _look_now_and_then(viewer, options.watch_s - 3 * _SETTLE_S)
        if job.wait(options.timeout_s) != 0:
            progress(f"the job failed:\n{job.last_words()}")
            return None
        told = [json.loads(path.read_text()) for path in job.folder.glob("done-*")]
    in_second: Counter[int] = sum((Counter({int(k): v for k, v in each.items()}) for each in told), Counter())
    # Whole seconds that lie in a window.
    rates = [sum(in_second[second] for second in range(begin, end)) / (end - begin) for begin, end in windows]
    progress(f"{WAYS[way]}: {len(rates)} windows, {_percent(cpu)} of a core")
    return Found(rates[::2], rates[1::2], cpu)


def _look_now_and_then(viewer: "Job | _MetricsOf", during_s: float) -> list[tuple[int, int]]:
    """Stop the watch and let it go on, window by window: the seconds of each. The first and the last are without it."""
    windows: list[tuple[int, int]] = []
    for number in range(int(during_s) // (_WINDOW_S + 1) // 2 * 2 - 1):
        looks = number % 2 == 1
        for process in viewer.processes():
            with contextlib.suppress(psutil.Error):
                process.resume() if looks else process.suspend()
        begin = math.ceil(time.monotonic())
        time.sleep(begin + _WINDOW_S - time.monotonic())
        windows.append((begin, begin + _WINDOW_S))
    for process in viewer.processes():
        with contextlib.suppress(psutil.Error):
            process.resume()
    return windows


@dataclass(frozen=True)
class _MetricsOf:
    """The process of a job that serves its metrics."""

    job: Job

    def processes(self) -> list[psutil.Process]:
        return [each for each in self.job.processes() if "rollcall.live.metrics.monitor" in each.cmdline()]


@contextlib.contextmanager
def _scraping(url: str) -> Iterator[None]:
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(_SCRAPE_S):
            with contextlib.suppress(OSError):  # its process is stopped in every other window
                urllib.request.urlopen(url, timeout=_SCRAPE_S).read()

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        yield
    finally:
        over.set()
        scraper.join()


@contextlib.contextmanager
def _looking_on(viewer: Job) -> Iterator[None]:
    """Ask what the page in a browser asks, as often as the server lets it; a browser itself would take a core.

    Begins with the page itself, which is made once.
    """
    over, opened = threading.Event(), threading.Event()
    asking = threading.Thread(target=_ask, args=(viewer, over, opened))
    asking.start()
    try:
        opened.wait(_OPENING_S)
        yield
    finally:
        over.set()
        asking.join()


def _ask(viewer: Job, over: threading.Event, opened: threading.Event) -> None:
    said = viewer.folder / "output.txt"
    while not (said.exists() and "token=" in said.read_text()):
        if over.wait(0.1):
            return
    url = next(line for line in said.read_text().splitlines() if "token=" in line).strip()
    token = url.partition("?")[2]
    since_s, due_s = 0.0, {"news": 0.0, "explained": 0.0}
    with contextlib.suppress(OSError):  # the run, and with it the watch, may be over by now
        urllib.request.urlopen(url).read()
        opened.set()
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
                    since_s = told["scene"]["meaning"]["duration"]


def _cpu_s(viewer: "Job | _MetricsOf") -> float:
    total = 0.0
    for process in viewer.processes():
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"

"""Run me with `make bench`, or: .venv/bin/python benchmarks/launch.py --json figures.json

Measures side by side, in one run on this machine, what `rollcall` promises against torchrun, accelerate launch,
fabric run and torch.multiprocessing.spawn:

    start      from the command to the end of the first all_reduce, for 2, 8, 16 and 64 ranks
    memory     PSS of 64 ranks that have done their first all_reduce
    pytest     a test on 4 ranks of the warm server
    recovery   SIGKILL of one of 4 ranks, and the restart
    help       `rollcall --help`

Only the ratios can be compared between machines, and only if nothing else runs. All of it takes about a quarter of
an hour on two cores. A part of it: --only memory. A quick look at whether everything works:

    --ranks 2 --repeats 1 --memory-ranks 4 --test-rounds 1 --tries 2 --torchrun-tries 1
"""

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from contenders import peer_versions
from jobs import Jobs
from results import Goal, Result, console, progress, table
from sections import first_all_reduce, help, memory, recovery, warm_test

SECTIONS: dict[str, Callable[[Jobs, argparse.Namespace], Result]] = {
    "start": first_all_reduce.measure,
    "memory": memory.measure,
    "pytest": warm_test.measure,
    "recovery": recovery.measure,
    "help": help.measure,
}
BUSY = 0.5  # a load average that says that this machine has other things to do


def main() -> int:
    options = read_options()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)  # as an exception, so that every `with` ends what it started
    facts = machine()
    if os.getloadavg()[0] > BUSY:
        progress(f"this machine is busy (load average {os.getloadavg()[0]:.1f}): do not trust the figures")
    results: dict[str, Result] = {}
    try:
        with Jobs() as jobs:
            for name in options.only or SECTIONS:
                progress(f"{name}:")
                results[name] = SECTIONS[name](jobs, options)
                for each in results[name].tables:
                    console.print(each)
                if options.json:
                    save(options.json, facts, results)
    except KeyboardInterrupt:
        progress("interrupted: all that was started is ended")
        return 128 + signal.SIGINT
    show_summary(facts, [goal for result in results.values() for goal in result.goals])
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", nargs="+", choices=SECTIONS, help="these sections alone")
    add("--json", type=Path, metavar="FILE", help="write all single figures here, after each section")
    add("--ranks", type=count, nargs="+", default=[2, 8, 16, 64], help="start: numbers of ranks (2 8 16 64)")
    add("--repeats", type=count, help="start: repeats of each (5 for 2 and 8 ranks, 3 for 16, 2 for 64)")
    add("--memory-ranks", type=count, default=64, help="memory: number of ranks (64)")
    add("--tests", type=count, default=10, help="pytest: tests of a session on warm ranks (10)")
    add("--spawn-tests", type=count, default=3, help="pytest: tests of a session with mp.spawn (3)")
    add("--test-rounds", type=count, default=2, help="pytest: sessions of each, in turn (2)")
    add("--tries", type=count, default=20, help="recovery: runs of rollcall (20)")
    add("--torchrun-tries", type=count, default=6, help="recovery: runs of torchrun, each way (6)")
    add("--try-timeout-s", type=float, default=60.0, help="recovery: the longest that one run may take (60)")
    add("--timeout-s", type=float, default=300.0, help="the longest that any other command may take (300)")
    return parser.parse_args()


def count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return number


def machine() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "rollcall", "pytest")},
        **peer_versions(),
    }


def save(path: Path, facts: dict[str, Any], results: dict[str, Result]) -> None:
    sections = {
        name: {"goals": [asdict(goal) for goal in result.goals], "figures": result.figures}
        for name, result in results.items()
    }
    path.write_text(json.dumps({"machine": facts, "sections": sections}, indent=2) + "\n")


def show_summary(facts: dict[str, Any], goals: list[Goal]) -> None:
    made = table("Summary", "", "goal", "here", "met")
    words = {True: "yes", False: "NO", None: "not measured"}
    for goal in goals:
        made.add_row(goal.what, goal.wanted, goal.found, words[goal.met])
    console.print(made)
    console.print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()))


def leave(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())

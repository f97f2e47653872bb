"""Runs the sections of a benchmark one after the other, prints their tables, and the goals at the end."""

import argparse
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from contenders import peer_versions
from jobs import Jobs
from results import Goal, Result, console, progress, table
from rollcall import __version__

Section = Callable[[Jobs, argparse.Namespace], Result]
BUSY = 0.5  # load average from which on other programs disturb the measurement


def run_sections(sections: Mapping[str, Section], options: argparse.Namespace) -> int:
    """Run all sections, or those that the options name; the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # as an exception, so that every `with` ends what it started
    facts = _machine()
    if os.getloadavg()[0] > BUSY:
        progress(f"this machine is busy (load average {os.getloadavg()[0]:.1f}): do not trust the figures")
    results: dict[str, Result] = {}
    try:
        with Jobs() as jobs:
            for name in options.only or sections:
                progress(f"{name}:")
                results[name] = sections[name](jobs, options)
                for each in results[name].tables:
                    console.print(each)
                if options.json:
                    _save(options.json, facts, results)
    except KeyboardInterrupt:
        progress("interrupted: all that was started is ended")
        return 128 + signal.SIGINT
    _show_summary(facts, [goal for result in results.values() for goal in result.goals])
    return 0


def parser(description: str | None, sections: Mapping[str, Section]) -> argparse.ArgumentParser:
    """A parser with the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--only", nargs="+", choices=sections, help="these sections alone")
    made.add_argument("--json", type=Path, metavar="FILE", help="write all single figures here, after each section")
    return made


def count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return number


def _machine() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "rollcall": __version__,
        **{name: version(name) for name in ("torch", "pytest")},
        **peer_versions(),
    }


def _save(path: Path, facts: dict[str, Any], results: dict[str, Result]) -> None:
    sections = {
        name: {"goals": [asdict(goal) for goal in result.goals], "figures": result.figures}
        for name, result in results.items()
    }
    path.write_text(json.dumps({"machine": facts, "sections": sections}, indent=2) + "\n")


def _show_summary(facts: dict[str, Any], goals: list[Goal]) -> None:
    made = table("Summary", "", "goal", "here", "met")
    words = {True: "yes", False: "NO", None: "not measured"}
    for goal in goals:
        made.add_row(goal.what, goal.wanted, goal.found, words[goal.met])
    if goals:  # small sizes, for a quick look, have none
        console.print(made)
    console.print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()))


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)

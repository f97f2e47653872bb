"""What recording costs one op: a world of one rank that reduces a small tensor, back to back."""

import argparse
import json
import sys
from pathlib import Path
from statistics import median

from contenders import PROGRAMS
from jobs import Jobs
from results import Goal, Result, how_it_failed, middle, progress, table
from rollcall.record import layout

MOST_US = 10.0


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    rounds = [tuple(_time_us(jobs, options, record) for record in (False, True)) for _ in range(options.op_repeats)]
    costs_us = [on - off for off, on in rounds if on is not None and off is not None]
    made = table(f"An all_reduce on one gloo rank, {options.ops:,} back to back", "", "median", "lowest", "highest")
    for name, found in (("not recorded", [off for off, _ in rounds]), ("recorded", [on for _, on in rounds])):
        made.add_row(name, *_cells(found))
    made.add_row("the difference", *_cells(costs_us))
    usual_us = middle(costs_us)
    goal = Goal(
        "recording an op",
        f"≤ {MOST_US:g} µs",
        "failed" if usual_us is None else f"{usual_us:.1f} µs",
        None if usual_us is None else usual_us <= MOST_US,
    )
    return Result([made], [goal], {"rounds_us": rounds})


def _time_us(jobs: Jobs, options: argparse.Namespace, record: bool) -> float | None:
    words = [sys.executable, str(PROGRAMS / "back_to_back.py"), str(options.ops), *(["--record"] if record else [])]
    with jobs.start(words, OMP_NUM_THREADS="1") as job:
        code = job.wait(options.timeout_s)
        if code != 0:
            progress(f"back_to_back.py {how_it_failed(code)}:\n{job.last_words()}")
            return None
        figures = json.loads((job.folder / "figures.json").read_text())
        recorded = sum(map(_records, job.folder.glob("rings/*/*.ring")))
    if record != (recorded >= figures["ops"]):
        progress(f"{figures['ops']} ops were made and {recorded} recorded: no figure")
        return None
    took_us = median(figures["blocks_ns"]) / 1000
    progress(f"{'recorded' if record else 'not recorded'}: {took_us:.1f} µs an op")
    return took_us


def _records(ring: Path) -> int:
    with open(ring, "rb") as file:
        return int(layout.NUMBER.unpack_from(file.read(layout.HEADER_BYTES), layout.COUNT_AT)[0])


def _cells(found_us: list[float | None]) -> list[str]:
    known = [each for each in found_us if each is not None]
    return [f"{each:.1f} µs" for each in (median(known), min(known), max(known))] if known else ["failed"] * 3

"""What recording costs one op: a world of one rank that reduces a small tensor, back to back."""

import argparse
import contextlib
import sys
from pathlib import Path
from statistics import median

from contenders import PROGRAMS
from jobs import Job, Jobs
from programs import turns
from results import Goal, Result, how_it_failed, median_or_none, progress, table
from rollcall.record import ring_format

MOST_US = 5.0
BLOCK = 200  # ops
PATIENCE_S = 30.0  # for a program to start, or to run a block
WAYS = ("not recorded", "recorded")


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    """Both programs run at the same time and take turns; started several times, since starts differ."""
    runs = [found for _ in range(options.op_repeats) if (found := _run(jobs, options)) is not None]
    costs_us = [cost for _, _, cost in runs]
    made = table(
        f"An all_reduce on one gloo rank, {options.op_blocks} blocks in turn", "", "median", "lowest", "highest"
    )
    for place, name in enumerate(WAYS):
        made.add_row(name, *_cells([both[place] for both in runs]))
    made.add_row("the difference", *_cells(costs_us))
    usual_us = median_or_none(costs_us)
    goal = Goal(
        "recording an op",
        f"≤ {MOST_US:g} µs",
        "failed" if usual_us is None else f"{usual_us:.1f} µs",
        None if usual_us is None else usual_us <= MOST_US,
    )
    return Result([made], [goal], {"runs_us": runs})


def _run(jobs: Jobs, options: argparse.Namespace) -> tuple[float, float, float] | None:
    """Microseconds of an op without and with recording, and the difference of blocks that ran one after the other."""
    with contextlib.ExitStack() as stack:
        players = [stack.enter_context(turns.Player(PATIENCE_S)) for _ in WAYS]
        running = [
            stack.enter_context(_start(jobs, options.op_blocks, player.port, is_recorded))
            for player, is_recorded in zip(players, (False, True), strict=True)
        ]
        for player, job in zip(players, running, strict=True):
            player.is_there = job.runs
        rounds = turns.take_turns(players, options.op_blocks)
        for job in running:
            code = job.wait(options.timeout_s)
            if code != 0:
                progress(f"back_to_back.py {how_it_failed(code)}:\n{job.last_words()}")
                return None
        records = [sum(map(_records, job.folder.glob("rings/*/*.ring"))) for job in running]
    if records[0] or records[1] < options.op_blocks * BLOCK:
        progress(f"{records[0]} and {records[1]} of {options.op_blocks * BLOCK} ops were recorded: no figure")
        return None
    pairs = [(bare, recorded) for bare, recorded in rounds if bare is not None and recorded is not None]
    bare_us, recorded_us = (median(each) / 1000 for each in zip(*pairs, strict=True))
    cost_us = median(recorded - bare for bare, recorded in pairs) / 1000
    progress(f"{bare_us:.1f} and {recorded_us:.1f} µs an op")
    return bare_us, recorded_us, cost_us


def _start(jobs: Jobs, blocks: int, port: int, is_recorded: bool) -> Job:
    words = [sys.executable, str(PROGRAMS / "back_to_back.py"), str(blocks), str(BLOCK), str(port)]
    return jobs.start([*words, *(["--record"] if is_recorded else [])], OMP_NUM_THREADS="1")


def _records(ring: Path) -> int:
    with open(ring, "rb") as file:
        return int(ring_format.NUMBER.unpack_from(file.read(ring_format.HEADER_BYTES), ring_format.COUNT_AT)[0])


def _cells(found_us: list[float]) -> list[str]:
    return [f"{each:.1f} µs" for each in (median(found_us), min(found_us), max(found_us))] if found_us else ["–"] * 3

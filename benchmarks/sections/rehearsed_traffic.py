"""The bytes between hosts that a rehearsal tells, beside what 4 virtual hosts with 2 gloo ranks each really send."""

import argparse
import contextlib
import json
import os
from collections import defaultdict
from typing import Any

from contenders import PROGRAMS, ROLLCALL
from jobs import Jobs
from results import Goal, Result, how_it_failed, progress, table
from rollcall.protocol.plan import Program
from rollcall.rehearse import forked_ranks, rehearsal
from rollcall.rehearse.network.traffic import Traffic
from rollcall.rehearse.settings import GPUS, RehearsalSettings

OPS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "send")
HOSTS, EACH = 4, 2
MOST = 0.03
_PROGRAM = "traffic_of_ops.py"


def measure(jobs: Jobs, options: argparse.Namespace) -> Result:
    columns = ("by all hosts", "interfaces", "", "largest error of a pair")
    made = table("Sent in one op of each sort, 4 hosts × 2 ranks, MB", "", *columns)
    figures: dict[str, Any] = {}
    if os.geteuid() != 0:
        progress("virtual hosts need root: this section is left out")
        return Result([], [Goal("traffic", f"± {MOST:.0%}", "needs root", None)])
    with contextlib.closing(forked_ranks.start_server(rehearsal.build_library())) as server:
        for op in OPS:
            real = run_for_real(jobs, op, options.timeout_s)
            told = rehearse(jobs, server, op)
            if not real:
                return Result([made], [Goal("traffic", f"± {MOST:.0%}", f"{op} failed", None)], figures)
            figures[op] = _compared(told, *_sent(real))
            row = figures[op]
            cells = [f"{row['rehearsed'] / 1e6:.1f}", f"{row['interfaces'] / 1e6:.1f}", f"{row['error']:+.1%}"]
            made.add_row(op, *cells, f"{row['pair_error']:.1%}")
            progress(f"{op}: {row['error']:+.2%}, pairs {row['pair_error']:.2%}")
    worst = max(max(abs(row["error"]), row["pair_error"]) for row in figures.values())
    return Result([made], [Goal(f"traffic of {len(OPS)} ops", f"± {MOST:.0%}", f"{worst:.1%}", worst <= MOST)], figures)


def run_for_real(jobs: Jobs, op: str, timeout_s: float, *options: str) -> list[dict[str, Any]]:
    """What each rank has counted; nothing if it failed."""
    folder = jobs.new_folder()
    words = [str(ROLLCALL.executable), "run", "--virtual-hosts", str(HOSTS), "-n", str(EACH), *options]
    with jobs.start([*words, str(PROGRAMS / _PROGRAM), op, str(folder)]) as job:
        if (code := job.wait(timeout_s)) != 0:
            progress(f"{op} {how_it_failed(code)}:\n{job.last_words()}")
            return []
    return [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]


def _sent(ranks: list[dict[str, Any]]) -> tuple[dict[int, int], dict[tuple[int, int], int]]:
    """By host: what its interface sent; by pair of hosts: what connections between them sent."""
    hosts = {each["address"]: each["host"] for each in ranks}
    interfaces = {each["host"]: each["sent"] for each in ranks}
    pairs: dict[tuple[int, int], int] = defaultdict(int)
    for each in ranks:
        for address, count in each["to"].items():
            if address in hosts and hosts[address] != each["host"]:
                pairs[each["host"], hosts[address]] += count
    return interfaces, pairs


def rehearse(jobs: Jobs, server: Any, op: str) -> Traffic:
    settings = RehearsalSettings(HOSTS * EACH, EACH, tuple(range(HOSTS * EACH)), 0, GPUS["h200"])
    program = Program("script", str(PROGRAMS / _PROGRAM), (op,))
    os.environ["ROLLCALL_DIR"] = str(jobs.new_folder())
    return rehearsal.run(settings, program, server).traffic


def _compared(told: Traffic, interfaces: dict[int, int], pairs: dict[tuple[int, int], int]) -> dict[str, float]:
    """A pair's error is one of all that was sent: many pairs send nothing but the few bytes of a barrier."""
    whole, real = sum(told.matrix.values()), sum(interfaces.values())
    both = set(told.matrix) | set(pairs)
    apart = max(abs(told.matrix.get(pair, 0.0) - pairs.get(pair, 0)) for pair in both)
    largest = max(told.matrix.values())
    return {"rehearsed": whole, "interfaces": real, "error": whole / real - 1, "pair_error": apart / largest}

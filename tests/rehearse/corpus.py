"""The corpus, rehearsed: programs with one planted bug each, and their correct twins. `make rehearse-corpus` prints
how many bugs are named, with kind, ranks and line, before the program ever runs on real ranks.

.venv/bin/python -m tests.rehearse.corpus [WORD …]

Only programs whose path has one of the words.
"""

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from rollcall.explain.verdict import to_json
from rollcall.protocol import plan
from rollcall.rehearse import forked_ranks, rehearsal
from rollcall.rehearse.rehearsal import Rehearsal
from rollcall.rehearse.settings import GPUS, RehearsalSettings
from rollcall.worker.fork_server import ForkServer

from ..explain.corpus import Program, is_right, programs

# By cause: kinds of bugs that a rehearsal cannot show, since its ranks do not run together.
LEFT_OUT = {
    "time": ("straggler", "input-stall", "busy-rank", "concurrent-calls"),
    "a kill": ("rank-killed", "stopped-rank"),
    "a network": ("network-cut",),
}


def chosen(words: list[str]) -> list[Program]:
    left_out = {kind for kinds in LEFT_OUT.values() for kind in kinds}
    return [
        program
        for program in programs()
        if program.path.parent.name not in left_out and (not words or any(word in str(program.path) for word in words))
    ]


def rehearse(program: Program, server: ForkServer, folder: Path) -> Rehearsal:
    os.environ["ROLLCALL_DIR"] = str(folder)
    each = -(-program.ranks // max(program.hosts, 1))
    settings = RehearsalSettings(program.ranks, each, tuple(range(program.ranks)), 0, GPUS["h200"])
    with contextlib.chdir(folder):
        return rehearsal.run(settings, plan.Program("script", str(program.path), ()), server)


def judge(program: Program, outcome: Rehearsal) -> str:
    """What is wrong with what the rehearsal says; empty if it is right."""
    told = to_json(outcome.explanation)
    if outcome.unsupported or outcome.unsettled:
        return "" if program.is_twin else f"missed  {program.name}: no verdict ({_why(outcome)})"
    if program.is_twin:
        return f"noise   {program.name}: {told['findings'][0]['message']}" if told["findings"] else ""
    return (
        "" if is_right(program, told["verdict"]) else f"missed  {program.name}: {_compared(program, told['verdict'])}"
    )


def _why(outcome: Rehearsal) -> str:
    return outcome.unsupported[0].sentence if outcome.unsupported else f"not settled after {outcome.passes} passes"


def _compared(program: Program, verdict: dict[str, Any] | None) -> str:
    got = verdict or {"kind": "nothing", "ranks": [], "sites": []}
    sites = [Path(site).name for site in got["sites"]]
    return f"wanted {program.kind} {program.look_at}, got {got['kind']} {got['ranks']} {sites}"


def main(words: list[str]) -> None:
    wanted = chosen(words)
    wrong: list[Program] = []
    with contextlib.closing(forked_ranks.start_server(rehearsal.build_library())) as server:
        for program in wanted:
            with tempfile.TemporaryDirectory() as folder:
                problem = judge(program, rehearse(program, server, Path(folder)))
            if problem:
                wrong.append(program)
                print(problem, flush=True)
    bugs, twins = (sum(each.is_twin is kind for each in wanted) for kind in (False, True))
    missed = sum(not each.is_twin for each in wrong)
    print(
        f"{bugs - missed} of {bugs} bugs with the right kind, ranks and line; noise on {len(wrong) - missed} of {twins}"
        f" twins; left out: what comes of {', '.join(LEFT_OUT)}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])

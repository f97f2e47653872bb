"""The corpus, rehearsed: programs with one planted bug each, and their correct twins. `make rehearse-corpus` prints the score.

.venv/bin/python -m tests.rehearse.corpus [WORD …]

Only programs whose path has one of the words. Left out is what a rehearsal cannot have: time, signals and networks.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollcall.explain.verdict import to_json
from rollcall.protocol.plan import Program as Target
from rollcall.rehearse import passes, rehearsal
from rollcall.rehearse.settings import GPUS, Settings
from rollcall.worker.fork_server import ForkServer

from ..explain.corpus import Program, is_right, programs

LEFT_OUT = {"straggler": "time", "input-stall": "time", "busy-rank": "time", "concurrent-calls": "time", "rank-killed": "kill", "stopped-rank": "kill", "network-cut": "network"}


def explain(program: Program, server: ForkServer, folder: Path) -> dict[str, Any]:
    os.environ["ROLLCALL_DIR"] = str(folder)
    each = -(-program.ranks // max(program.hosts, 1))
    settings = Settings(program.ranks, each, tuple(range(program.ranks)), 0, GPUS["h200"])
    outcome = rehearsal.run(settings, Target("script", str(program.path), ()), server)
    told = to_json(outcome.explanation)
    told["walls"] = [wall.sentence for wall in outcome.walls]
    told["unsettled"] = outcome.unsettled
    return told


def main(words: list[str]) -> None:
    chosen = [p for p in programs() if p.path.parent.name not in LEFT_OUT and (not words or any(word in str(p.path) for word in words))]
    right, noisy = 0, 0
    server = passes.start_server(rehearsal.build_library())
    for program in chosen:
        with tempfile.TemporaryDirectory() as folder:
            cwd = os.getcwd()
            os.chdir(folder)
            try:
                told = explain(program, server, Path(folder))
            except Exception as error:
                print(f"ERROR {program.name}: {error!r}", flush=True)
                os.chdir(cwd)
                continue
            os.chdir(cwd)
            got = told["verdict"] or {"kind": "nothing", "ranks": [], "sites": [], "message": ""}
            if told["walls"] or told["unsettled"]:
                print("WALL", program.name, told["walls"], told["unsettled"])
            if program.is_twin and told["findings"]:
                noisy += 1
                print(f"noise   {program.name}: {told['findings'][0]['message']}", flush=True)
            elif not program.is_twin:
                if is_right(program, told["verdict"]):
                    right += 1
                else:
                    print(
                        f"missed  {program.name}: wanted {program.kind} {program.look_at} {program.guilty}, got {got['kind']} {got['ranks']} {[Path(s).name for s in got['sites']]}",
                        flush=True,
                    )
    bugs = [program for program in chosen if not program.is_twin]
    print(f"{right} of {len(bugs)} bugs with the right kind, ranks and line; noise on {noisy} of {len(chosen) - len(bugs)} twins")


if __name__ == "__main__":
    main(sys.argv[1:])

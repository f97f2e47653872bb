"""Rehearsed ranks against real gloo ranks, op by op: `make bench-rehearse-order`.

.venv/bin/python -m benchmarks.rehearse_order [--ranks 8] [WORD …]

Each program of programs/rehearsed is rehearsed, and then runs on so many real ranks. Compared are kind, group, bytes,
shapes, dtype, peer, root, tag, reduce op and line of every op of every rank.
"""

import argparse
import contextlib
import os
import tempfile
from pathlib import Path

from rollcall.protocol.plan import Program
from rollcall.rehearse import check, forked_ranks, rehearsal
from rollcall.rehearse.rehearsal import Rehearsal
from rollcall.rehearse.settings import GPUS, RehearsalSettings
from rollcall.worker.fork_server import ForkServer

PROGRAMS = Path(__file__).parent / "programs" / "rehearsed"


def compared(path: Path, ranks: int, server: ForkServer) -> Rehearsal:
    settings = RehearsalSettings(ranks, ranks, tuple(range(ranks)), 0, GPUS["h200"])
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["ROLLCALL_DIR"] = folder
        return rehearsal.run(settings, Program("script", str(path), ()), server, with_check=True)


def in_words(outcome: Rehearsal) -> str:
    """What was found, in a line or a few."""
    if outcome.unsupported:
        return f"not rehearsed: {outcome.unsupported[0].sentence}"
    assert outcome.comparison is not None
    passed = f"{outcome.passes} pass{'es' * (outcome.passes > 1)}"
    return "\n    ".join((f"{passed}, real ranks: {outcome.comparison.outcome}", *check.lines(outcome.comparison)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("words", nargs="*", metavar="WORD")
    options = parser.parse_args()
    paths = [
        path
        for path in sorted(PROGRAMS.glob("*.py"))
        if not options.words or any(w in path.stem for w in options.words)
    ]
    equal, ops = 0, 0
    with contextlib.closing(forked_ranks.start_server(rehearsal.build_library())) as server:
        for path in paths:
            outcome = compared(path, options.ranks, server)
            print(f"{path.stem}: {in_words(outcome)}", flush=True)
            found = outcome.comparison
            if found is not None and found.outcome == "ok" and not found.differences and not outcome.unsupported:
                equal, ops = equal + 1, ops + found.ops
    print(f"{equal} of {len(paths)} programs have every op equal on {options.ranks} ranks: {ops:,} ops")


if __name__ == "__main__":
    main()

"""Bugs that only some ranks of a large world have, rehearsed: `make bench-rehearse-bugs`.

.venv/bin/python -m benchmarks.rehearse_bugs [--ranks 1024] [--classes] [WORD …]

Prints the verdict of each program of programs/rehearsed_bugs beside the kind that its docstring names, and how long the
rehearsal took.
"""

import argparse
import contextlib
import os
import re
import tempfile
from pathlib import Path

from rollcall.protocol.plan import Program
from rollcall.protocol.rank_ranges import ranks_in_words
from rollcall.rehearse import forked_ranks, rehearsal
from rollcall.rehearse.settings import GPUS, RehearsalSettings
from rollcall.units import in_seconds
from rollcall.worker.fork_server import ForkServer

PROGRAMS = Path(__file__).parent / "programs" / "rehearsed_bugs"
_KIND = re.compile(r"^kind: (\S+)$", re.M)


def judged(path: Path, ranks: int, by_kinds: bool, server: ForkServer) -> str:
    settings = RehearsalSettings(ranks, 8, tuple(range(ranks)), 0, GPUS["h200"])
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["ROLLCALL_DIR"] = folder
        found = rehearsal.run(settings, Program("script", str(path), ()), server, by_kinds=by_kinds)
    wanted = _KIND.findall(path.read_text())[0]
    verdict = found.explanation.verdict
    got = f"{verdict.kind}, {ranks_in_words(verdict.ranks)}" if verdict else "no verdict"
    word = "right" if verdict is not None and verdict.kind == wanted else f"wanted {wanted}"
    ran = len(found.explanation.run.ranks)
    return f"{path.stem}: {got} ({word}), {ran} ranks in {in_seconds(found.seconds)}, {found.passes} passes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--classes", action="store_true", help="run some ranks of each kind only")
    parser.add_argument("words", nargs="*", metavar="WORD")
    options = parser.parse_args()
    with contextlib.closing(forked_ranks.start_server(rehearsal.build_library())) as server:
        for path in sorted(PROGRAMS.glob("*.py")):
            if not options.words or any(word in path.stem for word in options.words):
                print(judged(path, options.ranks, options.classes, server), flush=True)


if __name__ == "__main__":
    main()

"""The corpus seen through torch's Flight Recorder alone: `rollcall explain` and torchfrtrace on the same dumps.

.venv/bin/python -m tests.explain.dump_corpus [WORD …]

Only programs whose path has one of the words. Ranks run without our recorder (peer_rank.py has them write their dumps).
Programs count whose bug shows in what gloo's recorder has: which collectives each rank asked for, in which order, with
which shapes and dtypes, and which of them are over. All correct twins count.
"""

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rollcall.errors import UsageError
from rollcall.explain.verdict import explain, to_json

from . import peers
from .corpus import Program, is_right, programs

KINDS = (
    *("missing-rank", "order-swap", "order-inversion", "mismatched-op", "mismatched-shape", "mismatched-dtype"),
    *("cross-group-deadlock", "straggler"),
)
_AT_ONCE = 2


def judge(program: Program) -> tuple[Program, str, bool, bool]:
    """What explain said, whether it is right, and whether torchfrtrace named the bug."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = peers.run(program, folder, peers.dumping(folder), "rollcall")
        messages = [] if program.is_twin else peers.trace(text, folder)
        by_torch = any(peers.names(program, message) for message in messages)
        try:
            told = to_json(explain(folder / "dumps"))
        except UsageError as error:
            return program, str(error), program.is_twin, by_torch
    found = told["verdict"]
    said = f"{found['kind']} {found['ranks']} {[Path(site).name for site in found['sites']]}" if found else "nothing"
    return program, said, not told["findings"] if program.is_twin else is_right(program, found), by_torch


def main(words: list[str]) -> None:
    wanted = [p for p in programs() if (not words or any(word in str(p.path) for word in words)) and not p.hosts]
    chosen = [p for p in wanted if p.kind in KINDS or (p.is_twin and p.path.parent.name in KINDS)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        judged = list(pool.map(judge, chosen))
    for program, said, right, _ in judged:
        if not right:
            print(f"{'noise ' if program.is_twin else 'missed'}  {program.name}: wanted {program.kind}, got {said}")
    bugs = [each for each in judged if not each[0].is_twin]
    twins = [each for each in judged if each[0].is_twin]
    print(f"{sum(right for _, _, right, _ in bugs)} of {len(bugs)} bugs with the right kind, ranks and line")
    print(f"noise on {sum(not right for _, _, right, _ in twins)} of {len(twins)} twins")
    print(f"{sum(by_torch for *_, by_torch in bugs)} of {len(bugs)} bugs with the right class and ranks: torchfrtrace")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The corpus seen through torch's Flight Recorder alone: `rollcall explain` and torchfrtrace on the same dumps.

.venv/bin/python -m tests.explain.dump_corpus [WORD …]

Only programs whose path has one of the words. Ranks run without our recorder (peer_rank.py has them write their dumps).
Programs count whose bug shows in what gloo's recorder has: which collectives each rank asked for, in which order, with
which shapes and dtypes, and which of them are over. What it lacks for the others is in LACKS. All correct twins count.
"""

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollcall.errors import UsageError
from rollcall.explain.verdict import explain, to_json

from . import peers
from .corpus import Program, is_right, programs

KINDS = (
    *("missing-rank", "order-swap", "order-inversion", "mismatched-op", "mismatched-shape", "mismatched-dtype"),
    *("cross-group-deadlock", "straggler"),
)
# Why the other kinds are left out: what gloo's recorder does not have.
LACKS = {
    "reduce ops, roots, splits": ("mismatched-reduce-op", "mismatched-root", "mismatched-splits"),
    "sends and receives, before torch 2.15": (
        *("p2p-deadlock", "p2p-against-collective", "p2p-dtype", "p2p-size"),
        *("tag-mismatch", "unmatched-recv", "unmatched-send", "wrong-peer"),
    ),
    "how and where a rank ended": ("rank-exited-early", "rank-failed", "rank-killed"),
    "where a rank is between two calls": ("busy-rank", "input-stall", "stopped-rank"),
    "waits for handles, and changes of buffers": ("unwaited-work", "buffer-overwritten"),
    "forwards, backwards and parameters of DDP": ("ddp-model-mismatch", "ddp-uneven-inputs", "ddp-unused-parameter"),
    "the calls that make groups, and those of ranks outside of a group": (
        *("group-incomplete", "world-incomplete", "non-member-call"),
    ),
    "threads of ops that are not over": ("concurrent-calls",),
    "hosts": ("network-cut",),
}
# Single programs: it is a pipeline, of sends and receives.
LEFT_OUT = ("straggler/middle_stage",)
# Whether an op is async is not there, either: these two look alike. Nor are lines of code that does not communicate:
# what a straggler does there.
_TOLD_AS = {"order-inversion": "order-swap"}
_WITHOUT_LINE = ("straggler",)
_SECONDS = 40
_AT_ONCE = 3  # most of the time they only wait


def judge(program: Program) -> tuple[Program, str, bool, bool]:
    """What explain said, whether it is right, and whether torchfrtrace named the bug."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = peers.run(program, folder, peers.dumping(folder), "rollcall", _SECONDS)
        for path in (folder / "dumps").iterdir():  # each is the last word of its rank, whenever that ended
            os.utime(path)
        messages = [] if program.is_twin else peers.trace(text, folder)
        by_torch = any(peers.names(program, message) for message in messages)
        try:
            told = to_json(explain(folder / "dumps"))
        except UsageError as error:
            return program, str(error), program.is_twin, by_torch
    found = told["verdict"]
    said = f"{found['kind']} {found['ranks']} {[Path(site).name for site in found['sites']]}" if found else "nothing"
    return program, said, not told["findings"] if program.is_twin else _is_right(program, found), by_torch


def _is_right(program: Program, found: dict[str, Any] | None) -> bool:
    """As far as the recorder has it."""
    if program.kind in _WITHOUT_LINE:
        return found is not None and (found["kind"], tuple(found["ranks"])) == (program.kind, program.look_at)
    return is_right(replace(program, kind=_TOLD_AS.get(program.kind, program.kind)), found)


def main(words: list[str]) -> None:
    wanted = [p for p in programs() if (not words or any(word in str(p.path) for word in words)) and not p.hosts]
    wanted = [p for p in wanted if p.name.removesuffix("_ok") not in LEFT_OUT]
    chosen = [p for p in wanted if p.kind in KINDS or (p.is_twin and p.path.parent.name in KINDS)]
    judged = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for program, said, right, by_torch in pool.map(judge, chosen):
            judged.append((program, said, right, by_torch))
            word = "right " if right else "noise " if program.is_twin else "missed"
            print(f"{word}  {program.name}: wanted {program.kind}, got {said}", flush=True)
    bugs = [each for each in judged if not each[0].is_twin]
    twins = [each for each in judged if each[0].is_twin]
    print(f"{sum(right for _, _, right, _ in bugs)} of {len(bugs)} bugs with the right kind, ranks and line")
    print(f"noise on {sum(not right for _, _, right, _ in twins)} of {len(twins)} twins")
    print(f"{sum(by_torch for *_, by_torch in bugs)} of {len(bugs)} bugs with the right class and ranks: torchfrtrace")
    print(f"left out, since the recorder lacks sends and receives: {', '.join(LEFT_OUT)}")
    for datum, kinds in LACKS.items():
        print(f"left out, since the recorder lacks {datum}: {', '.join(kinds)}")


if __name__ == "__main__":
    main(sys.argv[1:])

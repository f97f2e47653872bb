"""Run with `make bench-explain`, or: .venv/bin/python benchmarks/explain.py --json figures.json

Measures `rollcall explain --json` on the rings of big runs, up to ten million records (big_rings.py makes them, with
planted faults): seconds, peak memory, growth, and whether each fault was named with its kind and its ranks.

    explain   rings, by RANKSxOPS; sizes are doubled, to show that the time grows as the records do
    splits    all_to_alls with random splits (big_splits.py makes them), by RANKSxCALLS
    dumps     Flight Recorder dumps (big_dumps.py makes them), by DUMPSxOPS; torch keeps 2,000 ops of each rank

All of it takes a few minutes and 2 GB of disk. A quick look at whether everything works:

    --sizes 100x1000
    --sizes 100x1000 --faults straggler
    --sizes 100x1000 --faults                 a healthy run: nothing may be blamed
"""

import argparse
import sys

from big_run import ENDINGS, FAULTS, shape
from sections import explain_big, explain_dumps, explain_splits
from session import Section, parser, run_sections

SECTIONS: dict[str, Section] = {
    "explain": explain_big.measure,
    "splits": explain_splits.measure,
    "dumps": explain_dumps.measure,
}
# Two runs of each size: one that hangs, and one in which all ranks die after the first.
FAULTS_OF_A_RUN = [
    ["missing-rank", "straggler", "mismatched-dtype"],
    ["rank-killed", "mismatched-reduce-op", "buffer-overwritten"],
]
DUMPS = [(100, 2000), (1000, 500), (1000, 2000)]
SIZES = [(100, 1000), (100, 10_000), (1000, 1000), (1000, 5000), (1000, 10_000), (5000, 1000), (10_000, 1000)]
SPLITS = [(64, 1250), (64, 2500), (64, 5000)]


def main() -> int:
    return run_sections(SECTIONS, read_options())


def read_options() -> argparse.Namespace:
    options = parser(__doc__, SECTIONS)
    add = options.add_argument
    add("--sizes", type=size, nargs="+", default=SIZES, metavar="RANKSxOPS", help="100x1000 … 1000x10000 10000x1000")
    add("--splits", type=two_numbers, nargs="+", default=SPLITS, metavar="RANKSxCALLS", help="64x1250 64x2500 64x5000")
    add("--dumps", type=two_numbers, nargs="+", default=DUMPS, metavar="DUMPSxOPS", help="100x2000 1000x500 1000x2000")
    add("--faults", nargs="*", choices=FAULTS, help="one run of each size, with these (two runs, with six)")
    add("--timeout-s", type=float, default=300.0, help="the longest that one size may take (300)")
    found = options.parse_args()
    if set(ENDINGS) <= set(found.faults or ()):
        options.error(f"a run ends in one way: {' or '.join(ENDINGS)}")
    found.faults = FAULTS_OF_A_RUN if found.faults is None else [found.faults]
    return found


def size(text: str) -> tuple[int, int]:
    try:
        ranks, ops = map(int, text.split("x"))
        shape(ranks, ops, ())
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not RANKSxOPS, such as 1000x10000 ({error})") from error
    return ranks, ops


def two_numbers(text: str) -> tuple[int, int]:
    number, _, ops = text.partition("x")
    if not (number.isdecimal() and ops.isdecimal() and int(number) > 1 and int(ops) > 10):
        raise argparse.ArgumentTypeError(f"{text} is not two numbers, such as 1000x2000")
    return int(number), int(ops)


if __name__ == "__main__":
    sys.exit(main())

"""Run with `make bench`, or: .venv/bin/python benchmarks/launch.py --json figures.json

Compares rollcall with torchrun, accelerate launch, fabric run and torch.multiprocessing.spawn, in one run on this
machine:

    start      from the command to the end of the first all_reduce, for 2, 8, 16 and 64 ranks
    memory     PSS of 64 ranks that have done their first all_reduce
    warm       the same with a warm server (`rollcall warm`), for 4 and 16 ranks of `rollcall run` and rollcall.spawn,
               beside mp.spawn
    pytest     a test on 4 ranks of the warm server
    recovery   SIGKILL of one of 4 ranks, and the restart
    steady     ops of gloo and a DDP step, with as many ranks as cores, and twice as many
    help       `rollcall --help`

Only the ratios can be compared between machines, and only if nothing else runs. All of it takes about a quarter of
an hour on two cores. A part of it: --only memory. A quick look at whether everything works:

    --ranks 2 --repeats 1 --memory-ranks 4 --test-rounds 1 --tries 2 --torchrun-tries 1 --steady-repeats 1
    --warm-ranks 2 --warm-repeats 1
"""

import argparse
import sys

from sections import first_all_reduce, help, memory, recovery, steady, warm_start, warm_test
from session import Section, count, parser, run_sections

SECTIONS: dict[str, Section] = {
    "start": first_all_reduce.measure,
    "memory": memory.measure,
    "warm": warm_start.measure,
    "pytest": warm_test.measure,
    "recovery": recovery.measure,
    "steady": steady.measure,
    "help": help.measure,
}


def main() -> int:
    return run_sections(SECTIONS, read_options())


def read_options() -> argparse.Namespace:
    options = parser(__doc__, SECTIONS)
    add = options.add_argument
    add("--ranks", type=count, nargs="+", default=[2, 8, 16, 64], help="start: numbers of ranks (2 8 16 64)")
    add("--repeats", type=count, help="start: repeats of each (5 for 2 and 8 ranks, 3 for 16, 2 for 64)")
    add("--memory-ranks", type=count, default=64, help="memory: number of ranks (64)")
    add("--warm-ranks", type=count, nargs="+", default=[4, 16], help="warm: numbers of ranks (4 16)")
    add("--warm-repeats", type=count, default=5, help="warm: starts of each, in turn (5)")
    add("--tests", type=count, default=10, help="pytest: tests of a session on warm ranks (10)")
    add("--spawn-tests", type=count, default=3, help="pytest: tests of a session with mp.spawn (3)")
    add("--test-rounds", type=count, default=2, help="pytest: sessions of each, in turn (2)")
    add("--tries", type=count, default=20, help="recovery: runs of rollcall (20)")
    add("--torchrun-tries", type=count, default=6, help="recovery: runs of torchrun, each way (6)")
    add("--steady-repeats", type=count, default=3, help="steady: runs of each, in turn (3)")
    add("--try-timeout-s", type=float, default=60.0, help="recovery: the longest that one run may take (60)")
    add("--timeout-s", type=float, default=300.0, help="the longest that any other command may take (300)")
    return options.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Run with `make bench-report`, or: .venv/bin/python benchmarks/report.py --json figures.json

Measures what one sees, against what was promised:

    page    `rollcall report` of a million ops on 64 ranks: seconds, size; in Chromium: first paint, a step of zooming
    watch   `rollcall watch` and `--metrics` beside a job of 64 ranks with 200 ops a second each: what they take of the
            job and of a core
    loop    the timed loop of `rollcall bench` beside a bare loop of the same calls, in turn on the same ranks

Only in quiet do these figures say something. A quick look at whether everything works:

    --ranks 16 --ops 1000 --watch-ranks 4 --watch-s 24 --watch-cpu-s 10 --loop-rounds 1
"""

import argparse
import sys

from sections import bench_loop, report_page, watch_cost
from session import Section, count, parser, run_sections

SECTIONS: dict[str, Section] = {
    "page": report_page.measure,
    "watch": watch_cost.measure,
    "loop": bench_loop.measure,
}


def main() -> int:
    return run_sections(SECTIONS, read_options())


def read_options() -> argparse.Namespace:
    options = parser(__doc__, SECTIONS)
    add = options.add_argument
    add("--ranks", type=count, default=64, help="page: ranks (64)")
    add("--ops", type=count, default=15_625, help="page: ops of each rank (15625)")
    add("--zooms", type=count, default=24, help="page: steps of zooming (24)")
    add("--watch-ranks", type=count, default=64, help="watch: ranks of the job (64)")
    add("--watch-pace", type=count, default=200, help="watch: ops a second of each (200)")
    add("--watch-s", type=count, default=100, help="watch: seconds for what each job loses (100)")
    add("--watch-cpu-s", type=count, default=60, help="watch: seconds for what the watch takes (60)")
    add("--loop-rounds", type=count, default=41, help="loop: rounds of both loops (41)")
    add("--timeout-s", type=float, default=300.0, help="the longest that any command may take (300)")
    return options.parse_args()


if __name__ == "__main__":
    sys.exit(main())

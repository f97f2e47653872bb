"""Run with `make bench-rehearse`, or: .venv/bin/python benchmarks/rehearse.py --json figures.json

What `rollcall rehearse` says, beside reality:

    memory     what one rank of 17 training programs needs of its GPU, and on which cards it fits
    traffic    bytes between hosts of each op, beside the counters of 4 virtual hosts with 2 gloo ranks each; needs root
    time       the estimate of each op's time, beside the same hosts with slow links; needs root
    speed      time and memory of rehearsing 1,024 ranks: a small DDP script, an FSDP2 model of 7 billion parameters

The predictions of `memory` are in memory_predictions.json: --predict writes them again. On a machine with a GPU they
are measured; elsewhere they are shown alone, or beside a file that was measured on another machine:

    python benchmarks/programs/measure_memory.py memory.json      there: needs nothing but torch
    python benchmarks/rehearse.py --only memory --measured memory.json
"""

import argparse
import sys
from pathlib import Path

from sections import rehearsed_memory, rehearsed_speed, rehearsed_time, rehearsed_traffic
from session import Section, parser, run_sections

SECTIONS: dict[str, Section] = {
    "memory": rehearsed_memory.measure,
    "traffic": rehearsed_traffic.measure,
    "time": rehearsed_time.measure,
    "speed": rehearsed_speed.measure,
}


def main() -> int:
    options = read_options()
    if options.predict:
        rehearsed_memory.predict(rehearsed_memory.PREDICTIONS)
        return 0
    return run_sections(SECTIONS, options)


def read_options() -> argparse.Namespace:
    options = parser(__doc__, SECTIONS)
    add = options.add_argument
    add("--predict", action="store_true", help="memory: rehearse all configurations, and write their predictions")
    add("--measured", type=Path, metavar="FILE", help="memory: what measure_memory.py has written")
    add("--timeout-s", type=float, default=600.0, help="the longest that any command may take (600)")
    return options.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Run with `make bench-record`, or: .venv/bin/python benchmarks/record.py --json figures.json

Measures, in one run on this machine and always in turn with and without, what recording costs:

    op         an all_reduce on one gloo rank, back to back
    step       a DDP training step on two ranks, of a small and of a big model, in one process that records and does
               not in turn; beside it torch.profiler and TORCH_DISTRIBUTED_DEBUG=DETAIL; and whether the results are
               the same to the last bit
    start      a Python that forms no process group, with ROLLCALL_RECORD and without
    hang       how soon after the freeze the verdict is printed
    gpu        a training step on a GPU, where there is one: one nccl rank, and gloo ranks that share it

Only the ratios can be compared between machines, and only if nothing else runs. All of it takes about 25 minutes on
two cores. A part of it: --only op. A quick look at whether everything works:

    --op-blocks 10 --op-repeats 2 --step-blocks 4 --step-starts 2 --step-pairs 5 --step-repeats 1 --start-pairs 20 \
    --hang-repeats 1

On a machine with a GPU that has torch and nothing else:

    PYTHONPATH=src python benchmarks/programs/gpu.py              # the next three in five minutes: the shortest of each
    PYTHONPATH=src python benchmarks/programs/record_on_gpu.py
    PYTHONPATH=src python benchmarks/programs/op_on_gpu.py        # one op, in blocks that are recorded and not
    PYTHONPATH=src python benchmarks/programs/graph_captures.py   # whether CUDA graphs can be captured
    PYTHONPATH=src python benchmarks/programs/forms_on_gpu.py     # what is recorded there
"""

import argparse
import sys

from sections import hang_verdict, python_start, record_gpu, record_op, record_step
from session import Section, count, parser, run_sections

SECTIONS: dict[str, Section] = {
    "op": record_op.measure,
    "step": record_step.measure,
    "start": python_start.measure,
    "hang": hang_verdict.measure,
    "gpu": record_gpu.measure,
}


def main() -> int:
    return run_sections(SECTIONS, read_options())


def read_options() -> argparse.Namespace:
    options = parser(__doc__, SECTIONS)
    add = options.add_argument
    add("--op-blocks", type=count, default=300, help="op: blocks of 200 all_reduces of each process (300)")
    add("--op-repeats", type=count, default=9, help="op: processes of each way (9)")
    add("--step-blocks", type=count, default=100, help="step: blocks of steps in each run, in turn (100)")
    add("--step-starts", type=count, default=12, help="step: processes that record in turn with not recording (12)")
    add("--step-pairs", type=count, default=1000, help="step: pairs of blocks of each of them (1000)")
    add("--step-repeats", type=count, default=5, help="step, gpu: runs of each way (5)")
    add("--start-pairs", type=count, default=200, help="start: pairs of starts, in turn (200)")
    add("--hang-repeats", type=count, default=3, help="hang: runs (3)")
    add("--timeout-s", type=float, default=300.0, help="the longest that any command may take (300)")
    return options.parse_args()


if __name__ == "__main__":
    sys.exit(main())

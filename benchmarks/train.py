"""Run with `make bench-train`, or: .venv/bin/python benchmarks/train.py --json figures.json

Measures what `rollcall.Trainer` promises, side by side, in one run on this machine:

    throughput   the same training as a raw DDP loop, with Lightning Fabric, with Accelerate, on 2 ranks
    fsdp         FSDP2 by hand, with Lightning Fabric, with rollcall.Trainer: a step, memory, save, resume, lines
    stall        what a step loses to an asynchronous snapshot of 100 M parameters, and what torch.save would take
    recovery     SIGKILL of one of 4 ranks to the next finished step, against torchrun with its tutorial's script
    saving       kill -9 at random moments while saving: what can be loaded afterwards?
    gpu          a model of GPT-2's size in bf16 on one GPU: tokens a second of a raw loop, model FLOP utilisation

Only the ratios can be compared between machines, and only if nothing else runs. `--only gpu` needs nothing but torch:

    PYTHONPATH=src python benchmarks/train.py --only gpu

A quick look at whether everything works:

    --rounds 1 --workloads MLP --kills 5 --tries 2 --torchrun-tries 1 --snapshots 2
"""

import importlib.util
import sys


def main() -> int:
    if sys.argv[1:3] == ["--only", "gpu"] and importlib.util.find_spec("pydantic") is None:
        from sections import gpu_tokens

        return gpu_tokens.main(sys.argv[3:])
    from sections import fsdp, killed_saving, snapshot_stall, survival, throughput
    from sections.gpu_goal import measure as measure_gpu
    from session import Section, count, parser, run_sections

    sections: dict[str, Section] = {
        "throughput": throughput.measure,
        "fsdp": fsdp.measure,
        "stall": snapshot_stall.measure,
        "recovery": survival.measure,
        "saving": killed_saving.measure,
        "gpu": measure_gpu,
    }
    options = parser(__doc__, sections)
    add = options.add_argument
    add("--rounds", type=count, default=5, help="throughput and gpu: epochs of each library, in turn (5)")
    add("--starts", type=count, default=5, help="throughput: how often all are started for so many epochs (5)")
    add(
        "--workloads",
        nargs="+",
        choices=throughput.WORKLOADS,
        default=list(throughput.WORKLOADS),
        help="throughput: which (all)",
    )
    add("--snapshots", type=count, default=6, help="stall: snapshots of each kind (6)")
    add("--tries", type=count, default=20, help="recovery: runs of rollcall (20)")
    add("--torchrun-tries", type=count, default=4, help="recovery: runs of torchrun, each way (4)")
    add("--try-timeout-s", type=float, default=60.0, help="recovery: the longest that one run may take (60)")
    add("--kills", type=count, default=200, help="saving: how often to kill (200)")
    add("--gpu-batch-size", type=count, default=16, help="gpu: sequences of 1,024 tokens in a batch (16)")
    add("--timeout-s", type=float, default=600.0, help="the longest that any other command may take (600)")
    return run_sections(sections, options.parse_args())


if __name__ == "__main__":
    sys.exit(main())

"""PYTHONPATH=src python benchmarks/gpu.py --json figures.json

What one GPU shows, in less than six minutes; needs torch, numpy and pydantic:

    throughput   GPT-2 small, bf16, compiled, fused AdamW, flash attention: a hand-tuned loop and rollcall.Trainer
    memory       a model that does not fit on the card, as it is and with FSDP2, offload and recomputing

Without a GPU, `--dry` runs both with small sizes on the CPU: it shows that the program works, and measures nothing.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from sections import gpu_memory, gpu_tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    parser.add_argument("--batch-size", type=int, default=64, help="sequences of 1,024 tokens in a batch (64)")
    parser.add_argument("--steps", type=int, default=20, help="steps of a round (20)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of both loops (4)")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--dry", action="store_true", help="small sizes on the CPU")
    options = parser.parse_args()
    if not options.dry and (reason := gpu_tokens.why_not()):
        print(f"nothing is measured: {reason}; --dry shows that the program works")
        return 0
    began = time.monotonic()
    world = gpu_tokens.alone("cpu" if options.dry else "cuda")
    if options.dry:
        gpu_tokens.use_small_sizes()
        options.batch_size, options.steps, options.rounds = 2, 2, 1
    figures = gpu_tokens.compare(
        world, options.batch_size, options.steps, options.rounds, not (options.no_compile or options.dry)
    )
    for line in gpu_tokens.report(figures):
        print(line, flush=True)
    peaks = gpu_memory.measure(world)
    print("\n".join(gpu_memory.describe(peaks)), flush=True)
    if options.json:
        found = {"torch": torch.__version__, "throughput": gpu_tokens.as_json(figures), "memory": peaks}
        options.json.write_text(json.dumps({**found, "seconds": round(time.monotonic() - began)}, indent=1) + "\n")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())

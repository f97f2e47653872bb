"""All that recording may cost or harm on a GPU: PYTHONPATH=src python3 benchmarks/programs/gpu.py

Needs torch, a GPU and, for the recorder in C++, a compiler; nothing else. In about five minutes (--minutes):

- compiles the recorder;
- an all_reduce of nccl, in blocks that are recorded and not in turn;
- 30 captures each of CUDA graphs, of graphs with an all_reduce in them, and of torch.compile(mode="reduce-overhead");
  and who has a context on the GPU;
- a training step of GPT-2 small, recorded, and twice not recorded, for as long as there is time.

The exit code is 1 if one of them failed.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
CHECKS: dict[str, Sequence[str]] = {
    "the recorder in C++": ("-m", "rollcall.native"),
    "an op of nccl": (str(HERE / "op_on_gpu.py"),),
    "CUDA graphs": (str(HERE / "graph_captures.py"), "--collectives", "--compile"),
}
STEP = (str(HERE / "record_on_gpu.py"), "--models", "gpt", "--ways", "1 nccl rank", "--repeats", "1")


def main(minutes: float) -> int:
    deadline = time.monotonic() + 60 * minutes
    failed = [name for name, words in CHECKS.items() if not check(name, words)]
    has_time = True
    while has_time:  # once in any case
        began = time.monotonic()
        if not check("a step of GPT-2 small", STEP):
            failed.append("a step")
        has_time = 2 * time.monotonic() - began < deadline
    print(f"failed: {', '.join(failed)}" if failed else "nothing failed")
    return 1 if failed else 0


def check(name: str, words: Sequence[str]) -> bool:
    print(f"== {name}", flush=True)
    began = time.monotonic()
    code = subprocess.run([sys.executable, *words], check=False).returncode
    print(f"   exit code {code}, {time.monotonic() - began:.0f} s", flush=True)
    return code == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    sys.exit(main(parser.parse_args().minutes))

"""What recording costs a training step on a GPU: PYTHONPATH=src python benchmarks/programs/record_on_gpu.py

Needs torch and a GPU, and nothing else. In turn with and without recording: one nccl rank, and gloo
ranks that share the GPU. Prints a table, and writes the single figures to $ROLLCALL_BENCH/figures.json, if that is set.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import torch

PROGRAM = Path(__file__).with_name("train_steps.py")
WAYS = {"1 nccl rank": ("nccl", 1), "2 gloo ranks": ("gloo", 2)}
MOST_S = 300


def main(models: list[str], steps: int, repeats: int) -> int:
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU here: nothing to measure")
    figures: dict[str, dict[str, object]] = {}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {repeats} rounds of {steps} steps each")
    for model in models:
        for way, (backend, ranks) in WAYS.items():
            rounds = [{on: train(model, steps, backend, ranks, on) for on in (False, True)} for _ in range(repeats)]
            ratios = [one[True]["step_ns"] / one[False]["step_ns"] - 1 for one in rounds]
            plain_us, recorded_us = (median(one[on]["step_ns"] for one in rounds) / 1000 for on in (False, True))
            same = len({one[on]["digest"] for one in rounds for on in (False, True)}) == 1
            figures[f"{model}, {way}"] = {"ratios": ratios, "plain_us": plain_us, "same": same, "rounds": rounds}
            print(
                f"{model}, {way}: {plain_us:,.1f} µs a step, recorded {recorded_us:,.1f} µs: {median(ratios):+.2%}"
                f" ({min(ratios):+.2%} to {max(ratios):+.2%}); results {'the same' if same else 'DIFFER'}"
            )
    if "ROLLCALL_BENCH" in os.environ:
        Path(os.environ["ROLLCALL_BENCH"], "figures.json").write_text(json.dumps(figures))
    return 0


def train(model: str, steps: int, backend: str, ranks: int, record: bool) -> dict[str, object]:
    """The ranks, started by hand; what the first of them has measured."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, str(PROGRAM), model, str(steps), "--backend", backend, "--device", "cuda"]
        words += ["--meet", f"{folder}/meet", *(["--record"] if record else [])]
        env = {**os.environ, "ROLLCALL_BENCH": folder, "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
        started = [subprocess.Popen(words, env={**env, "RANK": str(rank)}) for rank in range(ranks)]
        try:
            codes = [process.wait(MOST_S) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
        if any(codes):
            sys.exit(f"RuntimeError: the ranks ended with {codes}")
        if record != Path(folder, "rings").exists():
            sys.exit(f"RuntimeError: recording was {'on' if record else 'off'}, and the rings say otherwise")
        told = json.loads(Path(folder, "rank-0.json").read_text())
    taken = told["steps_ns"]
    return {"step_ns": median(taken[len(taken) // 10 :]), "digest": told["digest"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["digits", "ten-million"])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    sys.exit(main(options.models, options.steps, options.repeats))

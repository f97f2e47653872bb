"""What recording costs a training step on a GPU: PYTHONPATH=src python benchmarks/programs/record_on_gpu.py

Needs torch and a GPU, and nothing else. One nccl rank, and gloo ranks that share the GPU; a program that records and
one that does not take turns. Prints a table, and writes the single figures to $ROLLCALL_BENCH/figures.json, if that is
set.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
import turns

PROGRAM = Path(__file__).with_name("train_steps.py")
STEPS = {"digits": 100, "ten-million": 100, "gpt": 5}  # of a block
WAYS = {"1 nccl rank": ("nccl", 1), "2 gloo ranks": ("gloo", 2)}
MOST_S = 120


def main(models: list[str], blocks: int, repeats: int) -> int:
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU here: nothing to measure")
    figures: dict[str, dict[str, object]] = {}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {repeats} × {blocks} blocks in turn")
    for model in models:
        for way, (backend, ranks) in WAYS.items():
            found = [compare(model, blocks, backend, ranks) for _ in range(repeats)]
            rounds = [each for steps_ns, _ in found for each in steps_ns]
            ratios = [recorded / plain - 1 for plain, recorded in rounds]
            plain_us, recorded_us = (median(each) / 1000 for each in zip(*rounds, strict=True))
            same = len({digest for _, digests in found for digest in digests}) == 1
            figures[f"{model}, {way}"] = {"ratios": ratios, "plain_us": plain_us, "same": same, "rounds_ns": rounds}
            print(
                f"{model}, {way}: {plain_us:,.1f} µs a step, recorded {recorded_us:,.1f} µs: {median(ratios):+.2%}"
                f" ({min(ratios):+.2%} to {max(ratios):+.2%}); results {'the same' if same else 'DIFFER'}",
                flush=True,
            )
    if "ROLLCALL_BENCH" in os.environ:
        Path(os.environ["ROLLCALL_BENCH"], "figures.json").write_text(json.dumps(figures))
    return 0


def compare(model: str, blocks: int, backend: str, ranks: int) -> tuple[list[list[float]], list[str]]:
    """Per block: nanoseconds of a step without and with; and what the parameters are at the end of each."""
    with contextlib.ExitStack() as stack:
        players = [stack.enter_context(turns.Player(MOST_S)) for _ in range(2)]
        folders = []
        for player, record in zip(players, (False, True), strict=True):
            words = [model, "--blocks", str(blocks), "--steps", str(STEPS[model]), "--port", str(player.port)]
            words += ["--backend", backend, "--device", "cuda", *(["--record"] if record else [])]
            folders.append(stack.enter_context(_started(words, ranks)))
        played = turns.take_turns(players, blocks)
        for folder in folders:
            folder.wait()
        if [folder.was_recorded for folder in folders] != [False, True]:
            sys.exit("RuntimeError: the rings say that the wrong one was recorded")
        return [[each for each in one if each is not None] for one in played], [folder.digest for folder in folders]


class _Ranks:
    """Started by hand."""

    def __init__(self, words: list[str], ranks: int, folder: str) -> None:
        env = {**os.environ, "ROLLCALL_BENCH": folder, "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
        env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it, cuBLAS is not the same twice
        words = [sys.executable, str(PROGRAM), *words, "--meet", f"{folder}/meet"]
        self._folder = Path(folder)
        self.processes = [subprocess.Popen(words, env={**env, "RANK": str(rank)}) for rank in range(ranks)]

    def wait(self) -> None:
        codes = [process.wait(MOST_S) for process in self.processes]
        if any(codes):
            sys.exit(f"RuntimeError: the ranks ended with {codes}")

    @property
    def was_recorded(self) -> bool:
        return (self._folder / "rings").exists()

    @property
    def digest(self) -> str:
        told: dict[str, Any] = json.loads((self._folder / "rank-0.json").read_text())
        return str(told["digest"])


@contextlib.contextmanager
def _started(words: list[str], ranks: int) -> Iterator[_Ranks]:
    with tempfile.TemporaryDirectory() as folder:
        found = _Ranks(words, ranks, folder)
        try:
            yield found
        finally:
            for process in found.processes:
                process.kill()
                process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(STEPS))
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    sys.exit(main(options.models, options.blocks, options.repeats))

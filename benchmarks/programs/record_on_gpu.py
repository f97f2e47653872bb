"""What recording costs a training step on a GPU: PYTHONPATH=src python benchmarks/programs/record_on_gpu.py

Needs torch and a GPU, and nothing else. One nccl rank, and gloo ranks that share the GPU. Three programs take turns:
one records, and two do not. How much these two differ is the noise. Prints a line for each, and writes the single
figures to $ROLLCALL_BENCH/figures.json, if that is set.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
import turns

PROGRAM = Path(__file__).with_name("train_steps.py")
STEPS = {"digits": 100, "ten-million": 100, "gpt": 5}  # of a block
WAYS = {"1 nccl rank": ("nccl", 1), "2 gloo ranks": ("gloo", 2)}
RECORDED = (False, True, False)  # of the programs that take turns
MOST_S = 120


def main(models: list[str], ways: list[str], blocks: int, repeats: int) -> int:
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU here: nothing to measure")
    figures: dict[str, dict[str, object]] = {}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {repeats} × {blocks} blocks in turn")
    for model in models:
        for way in ways:
            found = [compare(model, blocks, *WAYS[way]) for _ in range(repeats)]
            figures[f"{model}, {way}"] = figure = summary(found)
            print(f"{model}, {way}: {in_words(figure)}", flush=True)
    if "ROLLCALL_BENCH" in os.environ:
        Path(os.environ["ROLLCALL_BENCH"], "figures.json").write_text(json.dumps(figures))
    return 0


def summary(found: list[tuple[list[list[float]], list[str]]]) -> dict[str, Any]:
    """Each block of the recorded program is compared with the blocks of the other two around it."""
    rounds = [each for steps_ns, _ in found for each in steps_ns]
    return {
        "plain_us": median(plain for plain, _, _ in rounds) / 1000,
        "ratios": [2 * recorded / (plain + again) - 1 for plain, recorded, again in rounds],
        "noise": [again / plain - 1 for plain, _, again in rounds],
        "same": len({digest for _, digests in found for digest in digests}) == 1,
        "rounds_ns": rounds,
    }


def in_words(figure: dict[str, Any]) -> str:
    return (
        f"{figure['plain_us']:,.1f} µs a step; recorded {spread(figure['ratios'])}; noise {spread(figure['noise'])};"
        f" results {'the same' if figure['same'] else 'DIFFER'}"
    )


def spread(ratios: list[float]) -> str:
    """The median, how uncertain it is, and the middle half. The factor is that of a normal distribution."""
    low, _, high = quantiles(ratios, n=4)
    error = 0.93 * (high - low) / math.sqrt(len(ratios))
    return f"{median(ratios):+.3%} ± {error:.3%} (half of the blocks: {low:+.2%} to {high:+.2%})"


def compare(model: str, blocks: int, backend: str, ranks: int) -> tuple[list[list[float]], list[str]]:
    """Per block: nanoseconds of a step of each program; and what the parameters are at the end of each."""
    with contextlib.ExitStack() as stack:
        players = [stack.enter_context(turns.Player(MOST_S)) for _ in RECORDED]
        folders = []
        for player, record in zip(players, RECORDED, strict=True):
            words = [model, "--blocks", str(blocks), "--steps", str(STEPS[model]), "--port", str(player.port)]
            words += ["--backend", backend, "--device", "cuda", *(["--record"] if record else [])]
            folders.append(stack.enter_context(_started(words, ranks)))
        played = turns.take_turns(players, blocks)
        for folder in folders:
            folder.wait()
        if [folder.was_recorded for folder in folders] != list(RECORDED):
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
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    sys.exit(main(options.models, options.ways, options.blocks, options.repeats))

"""both_loops.py ROUNDS: a bare loop of all_reduce and that of `rollcall bench`, in turn, on the same ranks."""

import json
import os
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

import rollcall
from rollcall.bench import measuring, ops

SIZES = {8: 500, 64 << 20: 4}  # calls in each round


def main(rounds: int) -> None:
    with rollcall.init() as world:
        buffers = ops.Buffers.of(max(SIZES), world.device)
        found = {}
        for size, times in SIZES.items():
            given, taken = buffers.views(size, torch.float32)
            trial = ops.prepare("all_reduce", "in", world.rank, world.size, given, taken)
            for _ in range(3):
                trial.call()
            bare, bench = [], []
            for number in range(rounds):
                pair = (_bare, bare), (_bench, bench)
                for measure, into in pair if number % 2 else pair[::-1]:
                    trial.fill()
                    world.barrier()
                    into.append(measure(trial, given, times))
            found[size] = {"bare_s": median(bare), "bench_s": median(bench)}
        if world.is_first:
            Path(os.environ["ROLLCALL_BENCH"], "loops.json").write_text(json.dumps(found))


def _bare(trial, given, times) -> float:
    began_s = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(given)
    return (time.perf_counter() - began_s) / times


def _bench(trial, given, times) -> float:
    return float(measuring.times_s(trial, times, None).mean())


if __name__ == "__main__":
    main(int(sys.argv[1]))

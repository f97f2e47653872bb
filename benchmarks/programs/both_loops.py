"""both_loops.py ROUNDS: a bare loop of all_reduce and that of `rollcall bench`, in turn, on the same ranks."""

import json
import os
import sys
import time
from pathlib import Path
from statistics import fmean

import torch
import torch.distributed as dist

import rollcall
from rollcall.bench import ops, timed_loop

# Calls per turn, and turns per round. A turn is short, so that disturbances of the machine affect both loops.
SIZES = {8: (20, 30), 64 << 20: (2, 2)}

# Each rank is pinned to a core: the placement of gloo's threads would matter more than the loops.
CORES = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {CORES[int(os.environ["LOCAL_RANK"]) % len(CORES)]})


def main(rounds: int) -> None:
    with rollcall.init() as world:
        buffers = ops.Buffers.of(max(SIZES), world.device)
        found = {}
        for size, (times, turns) in SIZES.items():
            input, taken = buffers.views(size, torch.float32)
            trial = ops.prepare("all_reduce", "in", world.rank, world.size, input, taken)
            for _ in range(3):
                trial.call()
            quads = [_quad(world, trial, input, times) for _ in range(rounds * turns)]
            # Means: the time of a wake-up has two typical values, and a median jumps between them.
            found[size] = {"bare_s": fmean(bare for bare, _ in quads), "bench_s": fmean(bench for _, bench in quads)}
        if world.is_first:
            Path(os.environ["ROLLCALL_BENCH"], "loops.json").write_text(json.dumps(found))


def _quad(world, trial, input, times) -> tuple[float, float]:
    """Bare, bench, bench, bare: a steady change of speed affects both alike."""
    taken = {_bare: 0.0, _bench: 0.0}
    for measure in (_bare, _bench, _bench, _bare):
        trial.fill()
        world.barrier()
        trial.call()  # the first call after the barrier takes longer
        taken[measure] += measure(trial, input, times) / 2
    return taken[_bare], taken[_bench]


def _bare(trial, input, times) -> float:
    began_s = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(input)
    return (time.perf_counter() - began_s) / times


def _bench(trial, input, times) -> float:
    return float(timed_loop.times_s(trial, times, None).mean())


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""What recording costs one op on a GPU: PYTHONPATH=src python3 benchmarks/programs/op_on_gpu.py

Needs torch and a GPU, and nothing else. One nccl rank reduces 4 KB, back to back, in blocks that are recorded and not
in turn: in the others torch's own methods are back in place. Prints nanoseconds per op of both, and the difference of
blocks that followed each other: of time, and of the processor time of the thread that calls, which other programs on
the machine do not lengthen. --backend gloo does the same on the CPU; with --idle, the GPU is idle when an op begins.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from rollcall.record import recorder
from rollcall.record.hooks import patching, sink

ELEMENTS = 1024  # of 4 bytes
WARM_UP = 500


def main(backend: str, blocks: int, ops: int, is_idle: bool) -> None:
    device = torch.device("cuda" if backend == "nccl" else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        recording = recorder.begin(Path(folder), rank=0, world_size=1, attempt=0)
        HOOKED.update(methods())
        dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=0, world_size=1)
        tensor = torch.ones(ELEMENTS, device=device)
        for is_recorded in (True, False):
            switch(recording if is_recorded else None)
            block_ns(tensor, WARM_UP, is_idle)
        rounds = []
        for _ in range(blocks):
            switch(None)
            plain = block_ns(tensor, ops, is_idle)
            switch(recording)
            rounds.append((plain, block_ns(tensor, ops, is_idle)))
        name = torch.cuda.get_device_name() if backend == "nccl" else "CPU"
        print(f"{name}, torch {torch.__version__}, {type(recording).__name__}, {blocks} blocks of {ops} in turn")
        if patching.failures:
            print(f"recording failed: {dict(patching.failures)}")
        for place, kind in enumerate(("time", "processor time")):
            report(kind, [(plain[place], recorded[place]) for plain, recorded in rounds])
        recording.note_end(0, None)
        dist.destroy_process_group()


def report(kind: str, rounds: list[tuple[float, float]]) -> None:
    plain_ns, recorded_ns = (median(each) for each in zip(*rounds, strict=True))
    differences = sorted(recorded - plain for plain, recorded in rounds)
    middle = differences[len(differences) // 4 : -(len(differences) // 4) or None]
    half = f"half of the blocks: {middle[0]:,.0f} to {middle[-1]:,.0f}"
    print(f"{kind} of an op: {plain_ns:,.0f} ns not recorded, {recorded_ns:,.0f} ns recorded")
    print(f"  difference {median(differences):,.0f} ns ({half})")


def block_ns(tensor: torch.Tensor, ops: int, is_idle: bool) -> tuple[float, float]:
    """Nanoseconds of an op until the GPU is done, and processor time until the host has queued it."""
    began_ns, cpu_began_ns = time.perf_counter_ns(), time.thread_time_ns()
    for _ in range(ops):
        dist.all_reduce(tensor)
        if is_idle:
            torch.cuda.synchronize()
    cpu_ns = time.thread_time_ns() - cpu_began_ns
    if tensor.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter_ns() - began_ns) / ops, cpu_ns / ops


def switch(recording: recorder.Recorder | None) -> None:
    """Record from now on, or have torch's own methods in place of the hooks."""
    sink.use(recording or sink.OFF)
    for place, hooked in HOOKED.items():
        setattr(*place, hooked if recording else PLAIN[place])


def methods() -> dict[tuple[Any, str], Any]:
    """What an all_reduce passes."""
    return {(owner, name): vars(owner)[name] for owner, name in ((dist.ProcessGroup, "allreduce"), (dist.Work, "wait"))}


PLAIN = methods()
HOOKED: dict[tuple[Any, str], Any] = {}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="nccl", choices=("nccl", "gloo"))
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--ops", type=int, default=1000, help="of a block")
    parser.add_argument("--idle", action="store_true", help="wait for the GPU after each op")
    options = parser.parse_args()
    os.environ.update(RANK="0", WORLD_SIZE="1")
    main(options.backend, options.blocks, options.ops, options.idle)

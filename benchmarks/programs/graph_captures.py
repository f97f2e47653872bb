"""Whether recording leaves CUDA graphs alone: PYTHONPATH=src python3 benchmarks/programs/graph_captures.py

Needs torch and a GPU, and nothing else. One nccl rank does rounds of all_reduces, each followed by the capture of a
graph that lasts long enough for the recorder's thread to come by. Prints how many captures succeeded, once with nothing
but matmuls in them, and with --collectives and --compile also with an all_reduce in them and for torch.compile with
mode="reduce-overhead"; then the memory of this process and who has a context on the GPUs.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

import rollcall

ROUNDS = 30
ALL_REDUCES = 30
CAPTURE_S = 0.02  # the recorder's thread looks ten times in a second
SIZE = 256


def main(record: bool, collectives: bool, compiled: bool) -> int:
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU here: nothing to capture")
    variants: dict[str, Callable[[], bool]] = {"matmuls": lambda: capture(with_collective=False)}
    if collectives:
        variants["with an all_reduce"] = lambda: capture(with_collective=True)
    if compiled:
        variants["compiled"] = compile_and_run
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("ROLLCALL_DIR", folder)
        with rollcall.init("nccl", init_method=f"file://{folder}/meet", rank=0, world_size=1, record=record):
            print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
            succeeded = [count(name, variant, record) for name, variant in variants.items()]
            print(f"memory: {torch.cuda.memory_allocated():,} bytes allocated, {used_bytes():,} bytes used on the GPU")
            print(f"processes on the GPUs:\n{processes()}", flush=True)
    return 0 if all(each == ROUNDS for each in succeeded) else 1


def count(name: str, variant: Callable[[], bool], record: bool) -> int:
    """Reduce, then capture, so that there are events to ask during each capture."""
    succeeded = 0
    tensor = torch.ones(1024, device="cuda")
    for _ in range(ROUNDS):
        for _ in range(ALL_REDUCES):
            dist.all_reduce(tensor)
        succeeded += variant()
    print(f"{name}: captures: {succeeded} of {ROUNDS} (recording {'on' if record else 'off'})", flush=True)
    return succeeded


def capture(with_collective: bool) -> bool:
    """Whether a graph can be captured, and computes what it should when it is replayed."""
    matrix = torch.eye(SIZE, device="cuda") * 2
    warm_up(matrix)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            result = matrix @ matrix
            time.sleep(CAPTURE_S)
            result = result @ matrix
            if with_collective:
                dist.all_reduce(result)
        graph.replay()
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"  {str(error).splitlines()[0]}", flush=True)
        return False
    return bool(result.diagonal().eq(8).all())


def warm_up(matrix: torch.Tensor) -> None:
    """What cuBLAS and nccl do once must not be done in a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        dist.all_reduce(matrix @ matrix)
    torch.cuda.current_stream().wait_stream(side)


def compile_and_run() -> bool:
    """Three calls: torch.compile warms up, captures a graph, and replays it."""
    torch.compiler.reset()
    compiled = torch.compile(lambda matrix: (matrix @ matrix).relu() @ matrix, mode="reduce-overhead")
    matrix = torch.eye(SIZE, device="cuda") * 2
    try:
        results = [compiled(matrix).clone() for _ in range(3)]
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"  {str(error).splitlines()[0]}", flush=True)
        return False
    return all(bool(result.diagonal().eq(8).all()) for result in results)


def used_bytes() -> int:
    """Of all processes, contexts included."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def processes() -> str:
    """Each with the GPU that it has a context on: a rank should be listed once."""
    if shutil.which("nvidia-smi") is None:
        return "  nvidia-smi is not installed here"
    words = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader"]
    lines = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    return "\n".join([f"  {len(lines)} in all; this one is {os.getpid()}", *(f"  {line}" for line in lines)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-record", dest="record", action="store_false")
    parser.add_argument("--collectives", action="store_true", help="also captures with an all_reduce in them")
    parser.add_argument("--compile", dest="compiled", action="store_true", help="also torch.compile")
    options = parser.parse_args()
    sys.exit(main(options.record, options.collectives, options.compiled))

"""The timed loop. It only calls the op and reads the clock, so that it takes as long as a bare loop."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from time import perf_counter_ns

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rollcall.bench.ops import Trial, gather


def times_s(trial: Trial, iterations: int, synchronize: Callable[[], object] | None) -> NDArray[np.float64]:
    """The time of each call. `synchronize` waits until the GPU is done."""
    stamps = [0] * (iterations + 1)
    with _no_collection():
        _stamp(stamps, trial.call, synchronize)
    return np.diff(np.array(stamps)) / 1e9 / trial.ops_per_call


def queued_s(trial: Trial, iterations: int, device: torch.device) -> NDArray[np.float64]:
    """The mean time of a call, as nccl-tests measures it: all calls are queued, then waited for once."""
    with _no_collection():
        if device.type == "cuda":
            return np.array([_between_events_s(trial.call, iterations) / iterations / trial.ops_per_call])
        began_ns = perf_counter_ns()
        for _ in range(iterations):
            trial.call()
        return np.array([(perf_counter_ns() - began_ns) / 1e9 / iterations / trial.ops_per_call])


def replayed_s(trial: Trial, iterations: int) -> NDArray[np.float64]:
    """The mean time of a call in one CUDA graph of all calls: without the time that Python takes to call them."""
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as nccl's watchdog, may query their events during the capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(iterations):
            trial.call()
    graph.replay()  # the first time, it is copied to the GPU
    torch.cuda.synchronize()
    return np.array([_between_events_s(graph.replay, 1) / iterations / trial.ops_per_call])


def _between_events_s(call: Callable[[], object], iterations: int) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    for _ in range(iterations):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def _stamp(stamps: list[int], call: Callable[[], object], synchronize: Callable[[], object] | None) -> None:
    now = perf_counter_ns  # a local name is looked up fastest
    numbers = range(1, len(stamps))
    stamps[0] = now()
    if synchronize is None:
        for number in numbers:
            call()
            stamps[number] = now()
    else:
        for number in numbers:
            call()
            synchronize()
            stamps[number] = now()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage collection off, as in timeit: with torch imported, one takes as long as hundreds of small calls."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def synchronizer(device: torch.device) -> Callable[[], object] | None:
    return torch.cuda.synchronize if device.type == "cuda" else None


def gather_times(own: NDArray[np.float64], ranks: int, device: torch.device) -> NDArray[np.float64]:
    """One row for each rank."""
    output = torch.empty(ranks * own.size, dtype=torch.float64, device=device)
    gather(output, torch.from_numpy(own).to(device))
    return np.asarray(output.cpu().numpy().reshape(ranks, own.size))


def value_of_rank_0(value: float, device: torch.device) -> float:
    """Rank 0's value on every rank: all ranks must decide alike."""
    box = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(box, 0)
    return float(box.item())


def min_over_ranks(value: float, device: torch.device) -> float:
    box = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(box, dist.ReduceOp.MIN)
    return float(box.item())


def sum_over_ranks(value: int, device: torch.device) -> int:
    box = torch.tensor([value], dtype=torch.int64, device=device)
    dist.all_reduce(box)
    return int(box.item())

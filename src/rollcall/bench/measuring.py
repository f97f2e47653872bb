"""The timed loop. It does nothing but call and look at the clock, so that it costs what a bare loop costs."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from time import perf_counter_ns

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rollcall.bench.ops import Trial, gather


def times_s(trial: Trial, iterations: int, finish: Callable[[], object] | None) -> NDArray[np.float64]:
    """How long each of so many calls took. `finish` waits for what a GPU still has to do."""
    stamps = [0] * (iterations + 1)
    with _no_collection():
        _stamp(stamps, trial.call, finish)
    return np.diff(np.array(stamps)) / 1e9 / trial.divide


def _stamp(stamps: list[int], call: Callable[[], object], finish: Callable[[], object] | None) -> None:
    now = perf_counter_ns  # a local name is found soonest
    numbers = range(1, len(stamps))
    stamps[0] = now()
    if finish is None:
        for number in numbers:
            call()
            stamps[number] = now()
    else:
        for number in numbers:
            call()
            finish()
            stamps[number] = now()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """As timeit has it: with torch imported, looking through all objects takes as long as hundreds of small calls."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def finisher(device: torch.device) -> Callable[[], object] | None:
    return torch.cuda.synchronize if device.type == "cuda" else None


def from_all_ranks(own: NDArray[np.float64], ranks: int, device: torch.device) -> NDArray[np.float64]:
    """One row for each rank."""
    taken = torch.empty(ranks * own.size, dtype=torch.float64, device=device)
    gather(taken, torch.from_numpy(own).to(device))
    return np.asarray(taken.cpu().numpy().reshape(ranks, own.size))


def agreed(value: float, device: torch.device) -> float:
    """What rank 0 says: all ranks must take the same decisions."""
    box = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(box, 0)
    return float(box.item())


def smallest(value: float, device: torch.device) -> float:
    box = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(box, dist.ReduceOp.MIN)
    return float(box.item())


def total(value: int, device: torch.device) -> int:
    box = torch.tensor([value], dtype=torch.int64, device=device)
    dist.all_reduce(box)
    return int(box.item())

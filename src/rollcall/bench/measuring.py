"""The timed loop. It does nothing but call and look at the clock, so that it costs what a bare loop costs."""

from collections.abc import Callable
from time import perf_counter_ns

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rollcall.bench.ops import Trial, gather


def times_s(trial: Trial, iterations: int, finish: Callable[[], object] | None) -> NDArray[np.float64]:
    """How long each of so many calls took. `finish` waits for what a GPU still has to do."""
    stamps = [0] * (iterations + 1)
    call = trial.call
    stamps[0] = perf_counter_ns()
    if finish is None:
        for number in range(1, iterations + 1):
            call()
            stamps[number] = perf_counter_ns()
    else:
        for number in range(1, iterations + 1):
            call()
            finish()
            stamps[number] = perf_counter_ns()
    return np.diff(np.array(stamps)) / 1e9 / trial.divide


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

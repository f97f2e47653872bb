"""The mean loss over all samples of all ranks, each sample counted once.

Losses are added up as integers of a small unit. Their sum does not depend on the order of additions, so an interrupted
training reports exactly the same mean as an uninterrupted one.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch

_UNITS = 1 << 36


@dataclass(frozen=True)
class _Transfer:
    """Losses that are on their way from a GPU, or already on the CPU."""

    losses: torch.Tensor
    sources: list[tuple[int, int]]  # samples and step of each loss
    arrival: torch.cuda.Event | None

    def read(self) -> Iterable[tuple[float, tuple[int, int]]]:
        if self.arrival is not None:
            self.arrival.synchronize()
        return zip(self.losses.tolist(), self.sources, strict=True)


class LossMeter:
    """Collects the losses of steps, and reads their values in batches.

    A GPU computes asynchronously. To read its newest loss is to wait until its queue is empty, and then it has nothing
    to do until the CPU has queued the next step. So a meter that `lags` starts the transfer of the newest losses, and
    reads those whose transfer it started the time before.
    """

    def __init__(self, lags: bool) -> None:
        self.lags = lags
        self._losses: list[torch.Tensor] = []
        self._sources: list[tuple[int, int]] = []
        self._transfers: list[_Transfer] = []
        self.begin_epoch()

    def begin_epoch(self) -> None:
        self._total_units, self.total_samples = 0, 0
        self.begin_timing()

    def begin_timing(self) -> None:
        self._began_s, self._began_samples = time.monotonic(), self.total_samples

    def add(self, loss: torch.Tensor, samples: int, step: int) -> None:
        self._losses.append(loss)
        self._sources.append((samples, step))

    def collect(self, complete: bool) -> tuple[int, int, int]:
        """What is new on this rank: loss in units, samples, and the first step whose loss is not finite, or -1."""
        ready, self._transfers = self._transfers, self._begin_transfer()
        if complete or not self.lags:
            ready, self._transfers = ready + self._transfers, []
        units, count, bad_step = 0, 0, -1
        for transfer in ready:
            for value, (samples, step) in transfer.read():
                count += samples
                if math.isfinite(value):
                    units += round(value * samples * _UNITS)
                elif samples and bad_step < 0:
                    bad_step = step
        return units, count, bad_step

    def add_totals(self, units: int, samples: int) -> None:
        """Add what all ranks together have collected."""
        self._total_units += units
        self.total_samples += samples

    @property
    def mean(self) -> float:
        return self._total_units / self.total_samples / _UNITS if self.total_samples else math.nan

    def speed(self) -> dict[str, float]:
        """Returns the speed of this epoch; after a restart, of the part that this process has trained."""
        seconds = time.monotonic() - self._began_s
        return {"seconds": seconds, "samples_per_s": (self.total_samples - self._began_samples) / seconds}

    def state_dict(self) -> dict[str, int]:
        return {"units": self._total_units, "samples": self.total_samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._losses, self._sources, self._transfers = [], [], []
        self._total_units, self.total_samples = state["units"], state["samples"]

    def _begin_transfer(self) -> list[_Transfer]:
        if not self._losses:
            return []
        losses, sources = torch.stack(self._losses), self._sources
        self._losses, self._sources = [], []
        if not losses.is_cuda:
            return [_Transfer(losses, sources, None)]
        # Only a copy into pinned memory is asynchronous.
        copied = torch.empty(losses.shape, dtype=losses.dtype, pin_memory=True).copy_(losses, non_blocking=True)
        arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record()
        return [_Transfer(copied, sources, arrival)]

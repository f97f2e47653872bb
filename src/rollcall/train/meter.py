"""The mean loss over all samples of all ranks, each counted once.

Sums are whole numbers of a tiny unit: they come out the same in whatever order and portions they are added, so a
training that was interrupted reports the same mean as one that was not.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

_UNITS = 1 << 36


@dataclass(frozen=True)
class _Portion:
    """Losses on their way to the CPU, or there already."""

    losses: torch.Tensor
    of: list[tuple[int, int]]  # samples, step
    arrival: torch.cuda.Event | None

    def read(self) -> Iterable[tuple[float, tuple[int, int]]]:
        if self.arrival is not None:
            self.arrival.synchronize()
        return zip(self.losses.tolist(), self.of, strict=True)


class Meter:
    """Collects losses as they are, and reads them seldom.

    A GPU works through a queue, and to read its newest number is to wait until that queue is empty, and to leave the
    GPU without work until we have filled it again. So a meter that `lags` only sends for the newest losses, and reads
    those that it sent for the time before.
    """

    def __init__(self, lags: bool) -> None:
        self.lags = lags
        self._losses: list[torch.Tensor] = []
        self._of: list[tuple[int, int]] = []
        self._sent: list[_Portion] = []
        self.reset()

    def reset(self) -> None:
        self._total_units, self.total_samples = 0, 0

    def add(self, loss: torch.Tensor, samples: int, step: int) -> None:
        self._losses.append(loss)
        self._of.append((samples, step))

    def take(self, everything: bool) -> tuple[int, int, int]:
        """What is new on this rank: loss in units, samples, and the first step whose loss is not finite, or -1."""
        ready, self._sent = self._sent, self._send()
        if everything or not self.lags:
            ready, self._sent = ready + self._sent, []
        units, count, bad_step = 0, 0, -1
        for portion in ready:
            for value, (samples, step) in portion.read():
                count += samples
                if math.isfinite(value):
                    units += round(value * samples * _UNITS)
                elif samples and bad_step < 0:
                    bad_step = step
        return units, count, bad_step

    def settle(self, units: int, samples: int) -> None:
        """Add what all ranks together have taken."""
        self._total_units += units
        self.total_samples += samples

    @property
    def mean(self) -> float:
        return self._total_units / self.total_samples / _UNITS if self.total_samples else math.nan

    def state_dict(self) -> dict[str, int]:
        return {"units": self._total_units, "samples": self.total_samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._losses, self._of, self._sent = [], [], []
        self._total_units, self.total_samples = state["units"], state["samples"]

    def _send(self) -> list[_Portion]:
        if not self._losses:
            return []
        losses, of = torch.stack(self._losses), self._of
        self._losses, self._of = [], []
        if not losses.is_cuda:
            return [_Portion(losses, of, None)]
        # Only into pinned memory does a copy come without our waiting for it.
        here = torch.empty(losses.shape, dtype=losses.dtype, pin_memory=True).copy_(losses, non_blocking=True)
        arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record()
        return [_Portion(here, of, arrival)]

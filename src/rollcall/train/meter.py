"""The mean loss over all samples of all ranks, each counted once.

Sums are whole numbers of a tiny unit: they come out the same in whatever order and portions they are added, so a
training that was interrupted reports the same mean as one that was not.
"""

import math

import torch

_UNITS = 1 << 36


class Meter:
    """Collects losses as they are and looks at them seldom: to look at a GPU's number is to wait for it."""

    def __init__(self) -> None:
        self._fresh: list[tuple[torch.Tensor, int, int]] = []  # loss, samples, step
        self.reset()

    def reset(self) -> None:
        self._total_units, self.total_samples = 0, 0

    def add(self, loss: torch.Tensor, samples: int, step: int) -> None:
        self._fresh.append((loss, samples, step))

    def take(self) -> tuple[int, int, int]:
        """What is new on this rank: loss in units, samples, and the first step whose loss is not finite, or -1."""
        fresh, self._fresh = self._fresh, []
        losses = torch.stack([loss for loss, _, _ in fresh]).tolist() if fresh else []
        units, bad_step = 0, -1
        for value, (_, samples, step) in zip(losses, fresh, strict=True):
            if math.isfinite(value):
                units += round(value * samples * _UNITS)
            elif samples and bad_step < 0:
                bad_step = step
        return units, sum(samples for _, samples, _ in fresh), bad_step

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
        self._fresh = []
        self._total_units, self.total_samples = state["units"], state["samples"]

"""Exchanges a few numbers between all ranks about four times a second.

Not at every step: for a small model the exchange takes longer than the step. All ranks compute the number of steps
until the next exchange from the same numbers, so all of them exchange after the same step.
"""

import time
from dataclasses import astuple, dataclass

import torch
import torch.distributed as dist

from rollcall.world import World

_INTERVAL_US = 250_000


@dataclass(frozen=True)
class RankStatus:
    """What one rank tells the others. Integers only, so that it fits in one tensor."""

    stop_signal: int = 0  # the signal that this rank has received
    bad_step: int = -1  # the first step whose loss was not finite
    wants_save: int = 0
    elapsed_us: int = 0  # since the last exchange
    loss_units: int = 0  # since the last exchange
    samples: int = 0  # since the last exchange


class RankSync:
    """Counts the steps until the next exchange, and makes it."""

    def __init__(self, world: World) -> None:
        self._world = world
        # The tensors are on the CPU, which NCCL does not support.
        self._group = dist.new_group(backend="gloo") if world.size > 1 and world.device.type == "cuda" else None
        self._interval_steps = 1
        self._steps = 0
        self._last_s = time.monotonic()

    def is_due(self) -> bool:
        """Call this once after every step."""
        self._steps += 1
        return self._steps >= self._interval_steps

    def elapsed_us(self) -> int:
        return int((time.monotonic() - self._last_s) * 1e6)

    def exchange(self, status: RankStatus) -> list[RankStatus]:
        """The status of all ranks, in rank order."""
        statuses = self._gather(status)
        if self._steps:
            step_us = max(1.0, max(each.elapsed_us for each in statuses) / self._steps)
            self._interval_steps = max(1, min(2 * self._interval_steps, int(_INTERVAL_US / step_us)))
        self._steps, self._last_s = 0, time.monotonic()
        return statuses

    def _gather(self, status: RankStatus) -> list[RankStatus]:
        if self._world.size == 1:
            return [status]
        sent = torch.tensor(astuple(status), dtype=torch.int64)
        received = [torch.empty_like(sent) for _ in range(self._world.size)]
        dist.all_gather(received, sent, group=self._group)
        return [RankStatus(*each.tolist()) for each in received]

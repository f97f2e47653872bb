"""A word between all ranks every quarter of a second: is one told to end, has a loss gone wrong, is it time to save?

Not at every step: a step of a small model takes less time than asking. How many steps lie between two words follows
from how long they take, on all ranks alike, so that all speak at the same step.
"""

import signal
import threading
import time
from dataclasses import astuple, dataclass
from types import FrameType, TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from rollcall.world import World

_EVERY_US = 250_000


@dataclass(frozen=True)
class Beat:
    """What one rank has to say, in whole numbers."""

    stop: int = 0  # the signal that told it to end
    bad_step: int = -1  # the step at which its loss was not finite
    wants_save: int = 0
    took_us: int = 0  # since the last word
    loss_units: int = 0  # since then
    samples: int = 0


class Pulse:
    """Counts steps until the next word, and carries it."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Small tensors of the CPU: NCCL would need a GPU for them.
        self._group = dist.new_group(backend="gloo") if world.size > 1 and world.device.type == "cuda" else None
        self._every = 1
        self._steps = 0
        self._last = time.monotonic()

    def is_due(self) -> bool:
        """Called once a step."""
        self._steps += 1
        return self._steps >= self._every

    def took_us(self) -> int:
        return int((time.monotonic() - self._last) * 1e6)

    def exchange(self, mine: Beat) -> list[Beat]:
        """What all ranks have to say, in rank order."""
        everyone = self._gather(mine)
        if self._steps:
            step_us = max(1.0, max(beat.took_us for beat in everyone) / self._steps)
            self._every = max(1, min(2 * self._every, int(_EVERY_US / step_us)))
        self._steps, self._last = 0, time.monotonic()
        return everyone

    def _gather(self, mine: Beat) -> list[Beat]:
        if self._world.size == 1:
            return [mine]
        word = torch.tensor(astuple(mine), dtype=torch.int64)
        words = [torch.empty_like(word) for _ in range(self._world.size)]
        dist.all_gather(words, word, group=self._group)
        return [Beat(*each.tolist()) for each in words]


class Notice:
    """While inside, SIGTERM is a notice that the time is short, not the end."""

    def __init__(self) -> None:
        self.signal = 0
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # nobody else may
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number

"""When to save: every N epochs, steps or minutes."""

import re
import time
from dataclasses import dataclass
from typing import Literal

from rollcall.errors import UsageError

_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(epochs?|steps?|min|minutes?|)\s*")
_REMEDY = "use a number of epochs, or 500steps, or 10min"

Unit = Literal["epoch", "step", "minute"]


@dataclass(frozen=True)
class SaveInterval:
    """`2`, `2 epochs`, `500 steps`, `10 min`."""

    every: float
    unit: Unit

    @classmethod
    def parse(cls, text: str | int) -> "SaveInterval":
        match = _FORM.fullmatch(str(text))
        if match is None or float(match[1]) == 0:
            raise UsageError(f"save_every is {str(text)!r}: {_REMEDY}")
        every = float(match[1])
        unit: Unit = "step" if match[2].startswith("step") else "minute" if match[2].startswith("min") else "epoch"
        if unit != "minute" and not every.is_integer():
            raise UsageError(f"save_every is {text!r}, but only whole {unit}s are possible: {_REMEDY}")
        return cls(every, unit)

    def includes_step(self, step: int) -> bool:
        return self.unit == "step" and step % self.every == 0

    def includes_epoch(self, epochs_done: int) -> bool:
        return self.unit == "epoch" and epochs_done % self.every == 0

    def has_passed_since(self, last_save_s: float) -> bool:
        """Whether this many minutes have passed since then; the time is that of the monotonic clock."""
        return self.unit == "minute" and time.monotonic() - last_save_s >= self.every * 60

"""When to save: every so many epochs, steps or minutes."""

import re
import time
from dataclasses import dataclass
from typing import Literal

from rollcall.errors import UsageError

_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(epochs?|steps?|min|minutes?|)\s*")
_HELP = "use a number of epochs, or 500steps, or 10min"


@dataclass(frozen=True)
class Pace:
    """`2`, `2 epochs`, `500 steps`, `10 min`."""

    every: float
    unit: Literal["epoch", "step", "minute"]

    @classmethod
    def of(cls, text: str | int) -> "Pace":
        match = _FORM.fullmatch(str(text))
        if match is None or float(match[1]) == 0:
            raise UsageError(f"save_every is {str(text)!r}: {_HELP}")
        unit: Literal["epoch", "step", "minute"]
        unit = "step" if match[2].startswith("step") else "minute" if match[2].startswith("min") else "epoch"
        every = float(match[1])
        if unit != "minute" and every != int(every):
            raise UsageError(f"save_every is {text!r}, but there are no parts of an {unit}: {_HELP}")
        return cls(every, unit)

    def is_at_step(self, step: int) -> bool:
        return self.unit == "step" and step % self.every == 0

    def is_at_end_of(self, epoch: int) -> bool:
        return self.unit == "epoch" and (epoch + 1) % self.every == 0

    def is_after(self, last_save: float) -> bool:
        """Whether so many minutes have passed since that moment of the monotonic clock."""
        return self.unit == "minute" and time.monotonic() - last_save >= self.every * 60

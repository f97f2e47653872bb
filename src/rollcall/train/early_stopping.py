"""Stops a training before its last epoch when a metric no longer improves."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollcall.errors import UsageError


@dataclass
class EarlyStop:
    """Stop after `patience` epochs in a row in which the metric did not improve by more than `min_gain`."""

    metric: str = "loss"
    patience: int = 3
    min_gain: float = 0.0
    larger_is_better: bool = False
    best: float = field(default=math.inf, init=False)
    idle_epochs: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise UsageError(f"patience is {self.patience}: expected 1 epoch or more")

    @property
    def is_over(self) -> bool:
        return self.idle_epochs >= self.patience

    def after(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """The state after an epoch with these metrics."""
        if self.metric not in metrics:
            raise UsageError(f"early stop needs {self.metric!r}, which is not among the metrics {', '.join(metrics)}")
        value = -metrics[self.metric] if self.larger_is_better else metrics[self.metric]
        if value < self.best - self.min_gain:
            return {"best": value, "idle_epochs": 0}
        return {"best": self.best, "idle_epochs": self.idle_epochs + 1}

    def state_dict(self) -> dict[str, float]:
        return {"best": self.best, "idle_epochs": self.idle_epochs}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.best, self.idle_epochs = state["best"], int(state["idle_epochs"])

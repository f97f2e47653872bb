"""The exponential moving average of the weights, which is often better than the weights themselves.

Each rank averages its part of a sharded model. Snapshots save the average like the model, so that it continues on any
number of ranks.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from rollcall.train.weights.parts import local_part


class Ema:
    """`average = decay × average + (1 - decay) × weights` after each step."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay = model, decay
        self.wait_for_copies: Callable[[], None] = lambda: None  # of a snapshot that is being taken of the weights
        self.averages = {name: each.detach().clone() for name, each in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self._average_parts(), self._weight_parts(), 1 - self._decay)

    @torch.no_grad()
    def restart(self) -> None:
        """Begin again with the current weights: a snapshot may have been taken without an average."""
        torch._foreach_copy_(self._average_parts(), self._weight_parts())

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averages as its weights: to evaluate or export them."""
        self.wait_for_copies()
        with torch.no_grad():
            kept = [each.clone() for each in self._weight_parts()]
            torch._foreach_copy_(self._weight_parts(), self._average_parts())
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._weight_parts(), kept)

    def _average_parts(self) -> list[torch.Tensor]:
        return [local_part(each) for each in self.averages.values()]

    def _weight_parts(self) -> list[torch.Tensor]:
        # Not of detached tensors: torch would not count the change, and a snapshot could not detect it.
        return [local_part(each) for each in self._model.parameters()]


def find_problem(decay: float | None) -> str | None:
    if decay is None or 0 < decay < 1:
        return None
    return f"ema is {decay}: expected a number between 0 and 1, such as 0.999"

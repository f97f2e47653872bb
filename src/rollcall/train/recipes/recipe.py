"""`Recipe`: what is needed for a training, beside the options of the command line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rollcall.train.optimizers import OptimizersOf

_EXPECTED = "expected (model, optimizer, data) or a rollcall.Recipe"


@dataclass(frozen=True)
class Recipe:
    """`data` and `test_data` are datasets, or loaders that distribute their samples themselves.

    `loss(model(inputs), targets)` is a mean over the batch. `measures` are computed from outputs and targets of the
    test data. `options` are those of `rollcall.Trainer`; they come before the command line's.
    """

    model: nn.Module
    optimizer: OptimizersOf
    data: Any
    test_data: Any = None
    loss: Callable[..., torch.Tensor] = functional.cross_entropy
    measures: Mapping[str, Callable[..., torch.Tensor]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    describe: Callable[[Mapping[str, Any], int], str] | None = None  # the line of an epoch


def as_recipe(returned: Any) -> Recipe | str:
    """What a recipe's function has returned; or what is wrong with it."""
    if isinstance(returned, tuple) and len(returned) == 3:
        returned = Recipe(*returned)
    if not isinstance(returned, Recipe):
        what = (
            f"{len(returned)} values" if isinstance(returned, tuple) else f"an object of type {type(returned).__name__}"
        )
        return f"it returned {what}: {_EXPECTED}"
    if not isinstance(returned.model, nn.Module):
        return f"its model is of type {type(returned.model).__name__}: {_EXPECTED}"
    if not hasattr(returned.data, "__getitem__") and not hasattr(returned.data, "__iter__"):
        return f"its data is of type {type(returned.data).__name__}: expected a dataset or a loader"
    return returned

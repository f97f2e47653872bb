"""One optimizer or several, and their learning rate schedules: what a Trainer accepts for them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

Optimizers = Optimizer | Sequence[Optimizer]
# A function is called with the model that is ready for training: some optimizers refuse parameters on meta.
OptimizersOf = Optimizers | Callable[[nn.Module], Optimizers]


def as_tuple(optimizers: Optimizers | None) -> tuple[Optimizer, ...]:
    if optimizers is None:
        return ()
    return (optimizers,) if isinstance(optimizers, Optimizer) else tuple(optimizers)


def find_problem(given: Any, model: nn.Module) -> str | None:
    """An optimizer of another model, or of this one before it was copied, would not train this model."""
    optimizers = [given] if isinstance(given, Optimizer) else given
    if not isinstance(optimizers, list | tuple) or not all(isinstance(each, Optimizer) for each in optimizers):
        return f"the optimizer is a {type(given).__name__}: expected one of torch.optim, or several in a list"
    if not optimizers:
        return "the list of optimizers is empty: expected at least one"
    given_parameters = [each for optimizer in optimizers for each in parameters_of(optimizer)]
    known = {id(parameter) for parameter in model.parameters()}
    others = sum(id(parameter) not in known for parameter in given_parameters)
    if others and known:
        return f"the optimizer has {others} parameters that are not the model's: create it with model.parameters()"
    if len({id(each) for each in given_parameters}) < len(given_parameters):
        return "two optimizers have the same parameter: give each parameter to one of them"
    return None


def parameters_of(optimizer: Optimizer) -> Iterable[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def replace_parameters(optimizers: Iterable[Optimizer], before: dict[str, nn.Parameter], model: nn.Module) -> None:
    """Give the optimizers the model's current parameters in place of those that they were created with."""
    after = dict(model.named_parameters())
    new = {id(parameter): after[name] for name, parameter in before.items() if name in after}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [new.get(id(parameter), parameter) for parameter in group["params"]]


def class_names(optimizers: Sequence[Optimizer]) -> str | None:
    return "+".join(type(each).__name__ for each in optimizers) or None


class Schedules:
    """Several schedules that step together."""

    def __init__(self, schedules: Sequence[Any]) -> None:
        self._schedules = schedules

    @property
    def needs_loss(self) -> bool:
        return any(needs_loss(each) for each in self._schedules)

    def step(self, loss: float | None = None) -> None:
        for each in self._schedules:
            step_schedule(each, loss)

    def state_dict(self) -> dict[str, Any]:
        return {"schedules": [each.state_dict() for each in self._schedules]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for each, saved in zip(self._schedules, state["schedules"], strict=True):
            each.load_state_dict(saved)


def needs_loss(schedule: Any) -> bool:
    """Whether it lowers the learning rate when a loss no longer falls."""
    return schedule.needs_loss if isinstance(schedule, Schedules) else isinstance(schedule, ReduceLROnPlateau)


def step_schedule(schedule: Any, loss: float | None = None) -> None:
    if needs_loss(schedule):
        schedule.step(loss)
    else:
        schedule.step()


def as_schedule(given: Any, optimizers: Sequence[Optimizer]) -> Any:
    """A schedule, several in a list, or a function that makes one for each optimizer."""
    if callable(given):
        given = [given(optimizer) for optimizer in optimizers]
    if not isinstance(given, list | tuple):
        return given
    return given[0] if len(given) == 1 else Schedules(given)

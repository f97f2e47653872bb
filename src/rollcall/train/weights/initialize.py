"""Values for a model that was built on `meta`: first empty shards, then one module after the other is initialised.

Each module gets its whole parameters for a moment, is initialised with the same random numbers on all ranks, and keeps
this rank's part. So the values are the same at any number of ranks, and no more than one module is whole on a device.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature

import torch
from torch import nn

from rollcall.train.consensus import broadcast, fail_if_any
from rollcall.train.weights.parts import copy_own_part
from rollcall.world import World

Initialize = Callable[[nn.Module], object]
_RESET = ("reset_parameters", "_reset_parameters")  # torch.nn has both names


def is_on_meta(model: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in model.parameters())


def find_problem(model: nn.Module, initialize: Initialize | None, is_loaded: bool) -> str | None:
    """A module without a way to get its values would train on whatever was in memory."""
    if not is_on_meta(model):
        return None
    if real := sum(not each.is_meta for each in model.parameters()):
        return f"{real} parameters of the model are not on meta, the others are: build all of it on meta, or nothing"
    if initialize is not None or _find_own_function(model) is not None:
        return None
    for name, module in model.named_modules():
        lacking = _names_without_values(module, is_loaded)
        if lacking and _find_reset(module) is None:
            return (
                f"{name or 'the model'} ({type(module).__name__}) is on meta and has no reset_parameters for its "
                f"{lacking[0]}: write one, or pass initialize=..."
            )
    return None


def _names_without_values(module: nn.Module, is_loaded: bool) -> list[str]:
    """Names what still needs values; after a checkpoint was loaded, these are the buffers that are not saved."""
    buffers = [name for name, each in module._buffers.items() if each is not None and each.is_meta]
    if is_loaded:
        return [name for name in buffers if name in module._non_persistent_buffers_set]
    return [*(name for name, each in module._parameters.items() if each is not None), *buffers]


def allocate(model: nn.Module, device: torch.device, parameters_on: torch.device) -> None:
    """Replace what is on meta by memory without values. Parameters that were one stay one."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in made:
                    empty = torch.empty_like(parameter, device=parameters_on)
                    made[id(parameter)] = nn.Parameter(empty, parameter.requires_grad)
                setattr(module, name, made[id(parameter)])
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                setattr(module, name, _without_values(buffer, device))


def initialize_modules(
    model: nn.Module, initialize: Initialize | None, world: World, only_unsaved: bool = False
) -> None:
    """Inner modules first, as when a model is built. `only_unsaved`: a checkpoint gives the rest."""
    seed = broadcast(world, int(torch.randint(2**31, ()).item()))
    own = None if initialize is not None else _find_own_function(model)
    problem = None
    with _seeded(seed, world.device):
        for name, module in reversed(list(model.named_modules())):
            if problem is None and _has_own_tensors(module, only_unsaved):
                calls = [initialize] if initialize is not None else [_find_reset(module), own]
                problem = _initialize_module(name, module, calls, world.device, only_unsaved)
    fail_if_any(world, problem)


def _has_own_tensors(module: nn.Module, only_unsaved: bool) -> bool:
    parameters = () if only_unsaved else module.parameters(recurse=False)
    return any(True for _ in parameters) or bool(_own_buffers(module, only_unsaved))


def _initialize_module(
    name: str, module: nn.Module, calls: Sequence[Initialize | None], device: torch.device, only_unsaved: bool
) -> str | None:
    with _whole_parameters(module, device):
        for call in calls:
            if call is not None:
                call(module)
        checked = {**({} if only_unsaved else module._parameters), **_own_buffers(module, only_unsaved)}
        empty = next((key for key, each in checked.items() if each is not None and _lacks_values(each)), None)
    if empty is None:
        return None
    return f"{f'{name}.' if name else ''}{empty} has no values after initialize: let it handle {type(module).__name__}"


@contextmanager
def _whole_parameters(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Inside, the module's own parameters are ordinary tensors; afterwards each rank has kept its part."""
    own = {name: each for name, each in module._parameters.items() if each is not None}
    for name, each in own.items():
        module._parameters[name] = nn.Parameter(_without_values(each, device), each.requires_grad)
    try:
        yield
        for name, parameter in own.items():
            copy_own_part(parameter, getattr(module, name))
    finally:
        module._parameters.update(own)


def _own_buffers(module: nn.Module, only_unsaved: bool) -> dict[str, torch.Tensor]:
    unsaved = module._non_persistent_buffers_set
    found = {name: each for name, each in module._buffers.items() if each is not None}
    return {name: each for name, each in found.items() if name in unsaved} if only_unsaved else found


def _without_values(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Filled with NaN, so that a parameter without a value is noticed."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    return made.fill_(torch.nan) if made.is_floating_point() else made.zero_()


def _lacks_values(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and bool(tensor.isnan().any())


def _find_reset(module: nn.Module) -> Initialize | None:
    name = next((each for each in _RESET if callable(getattr(module, each, None))), None)
    return None if name is None else lambda module: getattr(module, name)()


def _find_own_function(model: nn.Module) -> Initialize | None:
    """`_init_weights(module)`, which many models have, as those of transformers: they call it after they are built."""
    found = (getattr(module, "_init_weights", None) for module in model.modules())
    return next((each for each in found if callable(each) and len(signature(each).parameters) == 1), None)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield

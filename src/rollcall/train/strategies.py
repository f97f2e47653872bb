"""How ranks share a model: ddp (copies, averaged gradients), fsdp (a part on each rank), none (separate models)."""

import hashlib
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast, get_args

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rollcall.train.consensus import fail_if_any, gather, require_equal
from rollcall.train.memory import keep_freed_memory
from rollcall.world import World

Strategy = Literal["ddp", "fsdp", "none"]
_INDUCTOR = "inductor"


def wrap(
    model: nn.Module, world: World, strategy: Strategy = "ddp", *, compile: bool | str = False, **options: Any
) -> nn.Module:
    """Move the model to this rank's device and prepare it for training together with the other ranks.

    `compile` is True for torch.compile, or the name of one of its backends. `options` go to DistributedDataParallel or
    fully_shard. "fsdp" replaces the model's parameters: create the optimizer afterwards (a Trainer updates an existing
    optimizer itself).
    """
    backend = "" if not compile else compile if isinstance(compile, str) else _INDUCTOR
    fail_if_any(world, _find_problem(model, strategy) or _find_missing_compiler(backend, world.device))
    _require_equal_models(model, world)
    if world.device.type == "cpu":
        keep_freed_memory()
    model = model.to(world.device)
    if strategy == "fsdp":
        return _shard(model, world, backend, options)
    if backend:
        _compile(model, backend)
    if strategy == "none":
        return model
    # Gradients are views of the buckets that are averaged, which saves copying them there and back.
    return DistributedDataParallel(model, **{"gradient_as_bucket_view": True, **options})


def unwrap(model: nn.Module) -> nn.Module:
    """The model as it was given to `wrap`."""
    return cast(nn.Module, model.module) if isinstance(model, DistributedDataParallel) else model


@contextmanager
def without_gradient_sync(model: nn.Module) -> Iterator[None]:
    """Backward passes inside add up gradients on each rank, without averaging them."""
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    elif _is_sharded(model):
        sharded = cast(Any, model)
        sharded.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            sharded.set_requires_gradient_sync(True)
    else:
        yield


def averages_gradients(model: nn.Module) -> bool:
    """Whether backward averages the gradients of all ranks."""
    return isinstance(model, DistributedDataParallel) or _is_sharded(model)


def replace_parameters(optimizer: torch.optim.Optimizer, before: dict[str, nn.Parameter], model: nn.Module) -> None:
    """Give the optimizer the model's current parameters in place of those that it was created with."""
    after = dict(model.named_parameters())
    new = {id(parameter): after[name] for name, parameter in before.items() if name in after}
    for group in optimizer.param_groups:
        group["params"] = [new.get(id(parameter), parameter) for parameter in group["params"]]


def _is_sharded(model: nn.Module) -> bool:
    # Late: the import takes seconds, and programs with DDP do not need it.
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


def _compile(model: nn.Module, backend: str) -> None:
    """In place, so that the parameters keep their names."""

    # Module.compile skips a model whose forward is torch's own code, such as nn.Sequential. So a function of ours is
    # compiled, which calls the model.
    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    model._compiled_call_impl = torch.compile(call, backend=backend)


def _find_missing_compiler(backend: str, device: torch.device) -> str | None:
    """Inductor generates C++ for the CPU, and some C for a GPU."""
    if backend != _INDUCTOR:
        return None
    variable, names = ("CXX", ["g++"]) if device.type == "cpu" else ("CC", ["gcc", "clang", "cc"])
    names = [os.environ[variable]] if variable in os.environ else names
    if any(shutil.which(name) for name in names):
        return None
    return f"compile needs a compiler, but there is no {' or '.join(names)}: install it, or train without compile"


def _shard(model: nn.Module, world: World, backend: str, options: dict[str, Any]) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    options = {"mesh": init_device_mesh(world.device.type, (world.size,)), **options}
    # Layers are separate units, so that only one of them is gathered at a time.
    layers = [layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module]
    for unit in [*layers, model]:
        if backend:  # only forward: the hooks around it, which gather the parameters, cannot be compiled
            unit.forward = torch.compile(unit.forward, backend=backend)
        fully_shard(unit, **options)
    return model


def _find_problem(model: nn.Module, strategy: str) -> str | None:
    if strategy not in get_args(Strategy):
        return f"strategy is {strategy!r}: use {', '.join(get_args(Strategy))}"
    if not any(True for _ in model.parameters()):
        return f"the model ({type(model).__name__}) has no parameters: there is nothing to train"
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return f"all parameters of the model ({type(model).__name__}) are frozen: there is nothing to train"
    return None


def _require_equal_models(model: nn.Module, world: World) -> None:
    """End all ranks if their models differ. Compares hashes first: the list of a large model's parameters is long."""
    shapes = [f"{name} {list(tensor.shape)}" for name, tensor in model.named_parameters()]
    if len(set(gather(world, hashlib.sha256(repr(shapes).encode()).hexdigest()))) == 1:
        return
    all_shapes = gather(world, shapes)
    first = next(number for number in itertools.count() if len({_at(each, number) for each in all_shapes}) > 1)
    require_equal(world, "the model", _at(shapes, first), "build it in the same way on every rank")


def _at(shapes: list[str], number: int) -> str:
    return shapes[number] if number < len(shapes) else f"only {number} parameters"

"""How ranks share a model: every rank a copy with averaged gradients (ddp), every rank a part of it (fsdp), or none."""

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

from rollcall.train.consensus import compare, gather, refuse_together
from rollcall.train.memory import keep_freed
from rollcall.world import World

Strategy = Literal["ddp", "fsdp", "none"]
_INDUCTOR = "inductor"


def wrap(
    model: nn.Module, world: World, strategy: Strategy = "ddp", *, compile: bool | str = False, **options: Any
) -> nn.Module:
    """The model on this rank's device, ready to train with the others.

    `compile` is True for torch.compile, or the name of one of its backends. `options` go to DistributedDataParallel or
    fully_shard. With "fsdp" the model's parameters are new ones: make the optimizer afterwards (the Trainer sees to
    it by itself).
    """
    backend = "" if not compile else compile if isinstance(compile, str) else _INDUCTOR
    refuse_together(world, _what_is_wrong(model, strategy) or _why_not_compiled(backend, world.device))
    _compare(model, world)
    if world.device.type == "cpu":
        keep_freed()
    model = model.to(world.device)
    if strategy == "fsdp":
        return _shard(model, world, backend, options)
    if backend:
        _compile(model, backend)
    if strategy == "none":
        return model
    # Gradients are parts of the buckets that are averaged: nobody copies them there and back.
    return DistributedDataParallel(model, **{"gradient_as_bucket_view": True, **options})


def bare(model: nn.Module) -> nn.Module:
    """The model as it was given to `wrap`."""
    return cast(nn.Module, model.module) if isinstance(model, DistributedDataParallel) else model


@contextmanager
def unsynced(model: nn.Module) -> Iterator[None]:
    """Gradients stay with their rank in here: more are to be added before they are averaged."""
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    elif isinstance(model, _fsdp_module()):
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
    else:
        yield


def averages(model: nn.Module) -> bool:
    """Whether backward leaves the average of all ranks' gradients."""
    return isinstance(model, (DistributedDataParallel, _fsdp_module()))


def repoint(optimizer: torch.optim.Optimizer, before: dict[str, nn.Parameter], model: nn.Module) -> None:
    """Let an optimizer that was made for the parameters of before have those that took their place."""
    after = dict(model.named_parameters())
    place_of = {id(parameter): after[name] for name, parameter in before.items() if name in after}
    for group in optimizer.param_groups:
        group["params"] = [place_of.get(id(parameter), parameter) for parameter in group["params"]]


def _fsdp_module() -> type[Any]:
    # Late: who does not shard need not wait for its import.
    from torch.distributed.fsdp import FSDPModule

    return FSDPModule


def _compile(model: nn.Module, backend: str) -> None:
    """In place: the names of the parameters stay what they are."""

    # Module.compile skips a model whose forward is torch's own code, as that of nn.Sequential is: so the call that
    # is compiled begins in a function of ours.
    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    model._compiled_call_impl = torch.compile(call, backend=backend)


def _why_not_compiled(backend: str, device: torch.device) -> str | None:
    """Inductor writes C++ for the CPU, and a little C around what runs on a GPU."""
    if backend != _INDUCTOR:
        return None
    variable, names = ("CXX", ["g++"]) if device.type == "cpu" else ("CC", ["gcc", "clang", "cc"])
    names = [os.environ[variable]] if variable in os.environ else names
    if any(shutil.which(name) for name in names):
        return None
    return f"compile needs a compiler, and there is no {' or '.join(names)}: install it, or train without compile"


def _shard(model: nn.Module, world: World, backend: str, options: dict[str, Any]) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    options = {"mesh": init_device_mesh(world.device.type, (world.size,)), **options}
    # Each layer is gathered when its turn comes, not all of them at once.
    layers = [layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module]
    for unit in [*layers, model]:
        if backend:  # what lies between the hooks that gather it: those are not for a compiler
            unit.forward = torch.compile(unit.forward, backend=backend)
        fully_shard(unit, **options)
    return model


def _what_is_wrong(model: nn.Module, strategy: str) -> str | None:
    if strategy not in get_args(Strategy):
        return f"strategy is {strategy!r}: use {', '.join(get_args(Strategy))}"
    if not any(True for _ in model.parameters()):
        return f"the model ({type(model).__name__}) has no parameters: there is nothing to train"
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return f"all parameters of the model ({type(model).__name__}) are frozen: there is nothing to train"
    return None


def _compare(model: nn.Module, world: World) -> None:
    """All ranks must have the same model. Only if they have not, they tell each other all of it."""
    shapes = [f"{name} {list(tensor.shape)}" for name, tensor in model.named_parameters()]
    if len(set(gather(world, hashlib.sha256(repr(shapes).encode()).hexdigest()))) == 1:
        return
    everyone = gather(world, shapes)
    first = next(number for number in itertools.count() if len({_at(each, number) for each in everyone}) > 1)
    compare(world, "the model", _at(shapes, first), "build it in the same way on every rank")


def _at(shapes: list[str], number: int) -> str:
    return shapes[number] if number < len(shapes) else f"only {number} parameters"

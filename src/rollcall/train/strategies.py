"""How ranks share a model: ddp (copies), fsdp and hsdp (a part on each rank), none (separate models)."""

import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from rollcall.linux.malloc import keep_freed_memory
from rollcall.train.consensus import fail_if_any, gather, require_equal
from rollcall.train.sharding.apply import find_problem as find_sharding_problem
from rollcall.train.sharding.apply import shard
from rollcall.train.sharding.mesh import grid_of
from rollcall.train.sharding.options import Fsdp
from rollcall.train.weights.initialize import Initialize, allocate, initialize_modules, is_on_meta
from rollcall.train.weights.initialize import find_problem as find_values_problem
from rollcall.world import World

Strategy = Literal["ddp", "fsdp", "hsdp", "none"]
Precision = Literal["fp32", "bf16", "fp16"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_INDUCTOR = "inductor"


def wrap(
    model: nn.Module,
    world: World,
    strategy: Strategy | Fsdp = "ddp",
    *,
    compile: bool | str = False,
    precision: Precision = "fp32",
    initialize: Initialize | None = None,
    weights: str | Path | None = None,
    **options: Any,
) -> nn.Module:
    """Move the model to this rank's device and prepare it for training together with the other ranks.

    `compile` is True for torch.compile, or the name of one of its backends. `precision` is that in which a sharded
    model computes. `initialize(module)` or, without it, each module's `reset_parameters` gives values to a model that
    was built on `meta`; `weights` is a checkpoint to load. `options` go to DistributedDataParallel or fully_shard. A
    sharded model has other parameters: create the optimizer afterwards (a Trainer updates an existing one itself).
    """
    backend = _backend_of(compile)
    sharding = as_sharding(strategy)
    fail_if_any(
        world,
        _find_problem(model, strategy)
        or _find_missing_compiler(backend, world.device)
        or find_values_problem(model, initialize, weights is not None)
        or (find_sharding_problem(model, sharding, world) if sharding else None),
    )
    _require_equal_models(model, world)
    if world.device.type == "cpu":
        keep_freed_memory()
    if sharding is not None:
        shard(model, world, sharding, DTYPES.get(precision), backend, options)
    _give_values(model, world, sharding, initialize, Path(weights) if weights is not None else None)
    if sharding is not None:
        return model
    if backend:
        _compile(model, backend)
    if strategy == "none":
        return model
    # Gradients are views of the buckets that are averaged, which saves copying them there and back.
    return DistributedDataParallel(model, **{"gradient_as_bucket_view": True, **options})


def as_sharding(strategy: Strategy | Fsdp) -> Fsdp | None:
    """How the model is sharded; None if it is not."""
    if isinstance(strategy, Fsdp):
        return strategy
    return {"fsdp": Fsdp(), "hsdp": Fsdp(replicas="hosts")}.get(strategy)


def data_ranks(strategy: Strategy | Fsdp, world: World) -> int:
    """How many ranks, or groups of ranks in tensor parallel, train on samples of their own."""
    sharding = as_sharding(strategy)
    return world.size if sharding is None else grid_of(sharding, world).data_ranks


def _give_values(
    model: nn.Module, world: World, sharding: Fsdp | None, initialize: Initialize | None, weights: Path | None
) -> None:
    """A sharded model has been moved to its device unit by unit already, unless it is on meta."""
    if is_on_meta(model):
        is_offloaded = sharding is not None and sharding.offload
        allocate(model, world.device, torch.device("cpu") if is_offloaded else world.device)
        initialize_modules(model, initialize, world, only_unsaved=weights is not None)
    elif sharding is None:
        model.to(world.device)
    if weights is not None:
        # Late: it imports torch.distributed.checkpoint, which most trainings do not need.
        from rollcall.train.weights.load import load_weights

        load_weights(model, weights, world)


def unwrap(model: nn.Module) -> nn.Module:
    """The model as it was given to `wrap`."""
    return cast(nn.Module, model.module) if isinstance(model, DistributedDataParallel) else model


@contextmanager
def without_gradient_sync(model: nn.Module) -> Iterator[None]:
    """Backward passes inside add up gradients on each rank, without averaging them."""
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    elif is_sharded(model):
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
    return isinstance(model, DistributedDataParallel) or is_sharded(model)


def is_sharded(model: nn.Module) -> bool:
    # Late: the import takes seconds, and programs with DDP do not need it.
    from torch.distributed.fsdp import FSDPModule

    return isinstance(model, FSDPModule)


def compiled_loss(loss: Callable[..., torch.Tensor], compile: bool | str) -> Callable[..., torch.Tensor]:
    """The loss in one kernel or a few, if `compile` is set.

    Cross entropy over a large vocabulary would otherwise read and write its inputs, the largest tensors of all, many
    times.
    """
    backend = _backend_of(compile)
    return torch.compile(loss, backend=backend) if backend else loss


def _backend_of(compile: bool | str) -> str:
    """The name of the backend of torch.compile; empty if nothing is compiled."""
    return "" if not compile else compile if isinstance(compile, str) else _INDUCTOR


def _compile(model: nn.Module, backend: str) -> None:
    """Compiles in place, so that the parameters keep their names."""

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


def _find_problem(model: nn.Module, strategy: str | Fsdp) -> str | None:
    if not isinstance(strategy, Fsdp) and strategy not in get_args(Strategy):
        return f"strategy is {strategy!r}: use {', '.join(get_args(Strategy))}, or rollcall.Fsdp(...)"
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

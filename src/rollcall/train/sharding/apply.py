"""Shards a model, unit by unit. A model on `meta` has no values meanwhile; any other is moved to its device by unit."""

import functools
from typing import Any

import psutil
import torch
from torch import nn

from rollcall.train.sharding import mesh, plan, units
from rollcall.train.sharding.options import Fsdp
from rollcall.units import in_bytes
from rollcall.world import World


def find_problem(model: nn.Module, options: Fsdp, world: World) -> str | None:
    return (
        units.find_problem(model, options.units)
        or mesh.find_problem(options, world)
        or plan.find_problem(model, options)
        or (_find_memory_problem(model, options, world) if options.offload else None)
    )


def _find_memory_problem(model: nn.Module, options: Fsdp, world: World) -> str | None:
    """Without it, the kernel would kill a rank in the middle of its first step. The optimizer needs more, if it has
    states."""
    grid = mesh.grid_of(options, world)
    parts = grid.shards * grid.tensor
    model_bytes = sum(each.numel() * each.element_size() for each in model.parameters())
    needed = 2 * model_bytes / parts * world.info.local_world_size
    free = psutil.virtual_memory().available
    if needed <= free:
        return None
    return (
        f"offload needs {in_bytes(needed)} of this host's memory for parameters and gradients, and {in_bytes(free)}"
        " are free: use more hosts, or train without offload"
    )


def shard(
    model: nn.Module, world: World, options: Fsdp, dtype: torch.dtype | None, backend: str, more: dict[str, Any]
) -> None:
    """`dtype` is that of the computation; gradients are averaged in float32. `more` are options of fully_shard."""
    from torch.distributed.fsdp import fully_shard

    data, tensor = mesh.make_meshes(mesh.grid_of(options, world), world.device.type)
    if tensor is not None:
        plan.parallelize(model, tensor, plan.plan_of(model, options))
    common = {"mesh": data, **_offload_policy(options, world), **more}
    for unit in units.find_units(model, options.units):
        if options.recompute:
            unit.forward = functools.partial(_recompute, unit.forward)
        _compile(unit, backend)
        fully_shard(unit, **{**_precision_policy(dtype, None), **common})
    _compile(model, backend)
    # The loss is computed from the output of the whole model, in float32 as under autocast.
    fully_shard(model, **{**_precision_policy(dtype, torch.float32), **common})


def _recompute(forward: Any, *args: Any, **kwargs: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _compile(unit: nn.Module, backend: str) -> None:
    if backend:  # only forward: the hooks around it, which gather the parameters, cannot be compiled
        unit.forward = torch.compile(unit.forward, backend=backend)


def _precision_policy(dtype: torch.dtype | None, output: torch.dtype | None) -> dict[str, Any]:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if dtype is None:
        return {}
    return {"mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=output)}


def _offload_policy(options: Fsdp, world: World) -> dict[str, Any]:
    from torch.distributed.fsdp import CPUOffloadPolicy

    return {"offload_policy": CPUOffloadPolicy(pin_memory=world.device.type == "cuda")} if options.offload else {}

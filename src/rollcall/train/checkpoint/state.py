"""What a snapshot contains, by name: `model.fc.weight`, `optimizer.fc.weight.exp_avg`, `rank-3.rng.torch` …

The names are those of the unwrapped model, so that they do not depend on the strategy.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from rollcall.errors import UsageError
from rollcall.train.checkpoint import storage
from rollcall.train.checkpoint.rng import read_rng, reseed, set_rng
from rollcall.train.checkpoint.storage import Values
from rollcall.train.consensus import fail_if_any
from rollcall.train.optimizers import parameters_of
from rollcall.train.strategies import averages_gradients, unwrap
from rollcall.world import World


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True)
class TrainingParts:
    """The objects whose state is the state of a training."""

    model: nn.Module
    optimizers: tuple[Optimizer, ...]
    others: Mapping[str, Stateful]  # scheduler, scaler, loader …
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)  # shared like the model's: averages of weights


@dataclass(frozen=True)
class RankState:
    """What one rank writes. `deferrable` names the tensors that only the optimizer's next step changes."""

    values: Values
    deferrable: frozenset[str]


def read_state(parts: TrainingParts, world: World) -> RankState:
    """This rank's part of the state. Tensors that are equal on all ranks are distributed among them."""
    tensors = {**model_tensors(parts.model), **_optimizer_tensors(parts), **parts.tensors}
    per_rank = _per_rank_names(parts, tensors)
    equal = {name: each.nbytes for name, each in tensors.items() if name not in per_rank and not _is_sharded(each)}
    # Rank 0's are saved without a rank in their names: ranks that did not exist then load those.
    writers = {**assign_writers(equal, world.size), **dict.fromkeys(per_rank, 0)}
    values: Values = {name: each for name, each in tensors.items() if _is_sharded(each) or writers[name] == world.rank}
    deferrable = _optimized_names(parts)
    if not world.is_first and not _broadcasts_buffers(parts.model):
        values |= {f"rank-{world.rank}.{name}": tensors[name] for name in per_rank}
        deferrable |= {f"rank-{world.rank}.{name}" for name in deferrable & per_rank}
    values |= {f"rank-{world.rank}.rng.{name}": state for name, state in read_rng(world.device).items()}
    if world.is_first:
        values |= {f"plain.{name}": _check_loadable(value, name) for name, value in _plain_values(parts)}
    else:
        own = ((name, each) for name, each in parts.others.items() if getattr(each, "differs_by_rank", False))
        values |= {f"rank-{world.rank}.plain.{name}": _check_loadable(each.state_dict(), name) for name, each in own}
    return RankState(values, frozenset(deferrable & values.keys()))


def load_state(parts: TrainingParts, world: World, folder: Path, step: int) -> bool:
    """Load a snapshot into the parts, which it is known to match. Whether it contained `parts.tensors`."""
    contents = storage.contents(folder)
    states = dict(_optimizer_targets(parts, contents))
    rng = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in contents.items()
        if name.startswith(f"rank-{world.rank}.rng.") and entry is not None
    }
    plain = dict.fromkeys(name for name in contents if name.startswith(("plain.", f"rank-{world.rank}.plain.")))
    more = {name: each for name, each in parts.tensors.items() if name in contents}
    tensors = {**model_tensors(parts.model), **states, **more}
    values: Values = {**tensors, **rng, **plain}
    try:
        storage.read(values, folder, storage.threads_of(world))
    except storage.UnsafeError as error:
        raise UsageError(f"{folder} is not safe to load ({error}): remove it, and start again") from None
    per_rank = {f"rank-{world.rank}.{name}": tensors[name] for name in _per_rank_names(parts, tensors)}
    storage.read({name: each for name, each in per_rank.items() if name in contents}, folder)
    if parts.optimizers:
        fail_if_any(world, _find_group_mismatch(parts, values["plain.optimizer"], folder))
        _load_optimizers(parts, states, values["plain.optimizer"])
    if extra := values["plain.model"]:
        unwrap(parts.model).load_state_dict({**unwrap(parts.model).state_dict(), **extra})
    for name, other in parts.others.items():
        saved = values.get(f"rank-{world.rank}.plain.{name}", values.get(f"plain.{name}"))
        if saved is not None:
            other.load_state_dict(saved)
    if rng:
        set_rng({name.rpartition(".")[2]: state for name, state in rng.items()}, world.device)
    else:  # this rank did not exist when the snapshot was taken
        reseed(step)
    return len(more) == len(parts.tensors)


def model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's tensors themselves, not copies: loading fills them in place."""
    state = unwrap(model).state_dict()
    return {f"model.{_strip_compile(name)}": each for name, each in state.items() if isinstance(each, torch.Tensor)}


def _per_rank_names(parts: TrainingParts, tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """Tensors that may differ between ranks: buffers, or everything if the ranks do not average gradients."""
    if not averages_gradients(parts.model):
        return set(tensors)
    names = {f"model.{_strip_compile(name)}" for name, _ in unwrap(parts.model).named_buffers()}
    return names & tensors.keys()


def _broadcasts_buffers(model: nn.Module) -> bool:
    """Whether DDP copies rank 0's buffers to all ranks before every forward pass."""
    return isinstance(model, DistributedDataParallel) and bool(model.broadcast_buffers)


def assign_writers(sizes_bytes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Which rank writes which tensor: the largest first, each to the rank with the least so far. Same on all ranks."""
    assigned_bytes = [0] * ranks
    writers = {}
    for name, size_bytes in sorted(sizes_bytes.items(), key=lambda item: (-item[1], item[0])):
        rank = assigned_bytes.index(min(assigned_bytes))
        writers[name] = rank
        assigned_bytes[rank] += size_bytes
    return writers


def optimizer_names(parts: TrainingParts) -> list[str]:
    """The names of the parameters that the optimizers change."""
    names = _parameter_names(parts)
    return [names[each] for group in _groups(parts) for each in group["params"]]


def _groups(parts: TrainingParts) -> list[dict[str, Any]]:
    """The parameter groups of all optimizers, in their order."""
    return [group for optimizer in parts.optimizers for group in optimizer.param_groups]


def _strip_compile(name: str) -> str:
    return name.replace("_orig_mod.", "")  # added by torch.compile


def _is_sharded(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, DTensor)


def _optimized_names(parts: TrainingParts) -> set[str]:
    if not parts.optimizers:
        return set()
    model = {f"model.{name}" for name in _parameter_names(parts).values()}
    return model | _optimizer_tensors(parts).keys() | parts.tensors.keys()


def _parameter_names(parts: TrainingParts) -> dict[torch.Tensor, str]:
    """The name of each parameter in the unwrapped model."""
    return {parameter: _strip_compile(name) for name, parameter in unwrap(parts.model).named_parameters()}


def _optimizer_tensors(parts: TrainingParts) -> dict[str, torch.Tensor]:
    """Not by torch's get_state_dict: it takes a step with an optimizer that has taken none."""
    names = _parameter_names(parts)
    return {
        f"optimizer.{names[parameter]}.{key}": value
        for optimizer in parts.optimizers
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    }


def _plain_values(parts: TrainingParts) -> Iterator[tuple[str, Any]]:
    model = unwrap(parts.model).state_dict()
    yield "model", {name: each for name, each in model.items() if not isinstance(each, torch.Tensor)}
    if parts.optimizers:
        yield "optimizer", _describe_optimizers(parts)
    for name, other in parts.others.items():
        yield name, other.state_dict()


def _describe_optimizers(parts: TrainingParts) -> dict[str, Any]:
    """Several optimizers are described as one with the groups of all."""
    names = _parameter_names(parts)
    groups = [{**group, "params": [names[each] for each in group["params"]]} for group in _groups(parts)]
    state = {
        names[parameter]: {key: value for key, value in state.items() if not isinstance(value, torch.Tensor)}
        for optimizer in parts.optimizers
        for parameter, state in optimizer.state.items()
    }
    return {"groups": groups, "state": state}


def _optimizer_targets(parts: TrainingParts, contents: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors to load the optimizers' into: those that they have, else new ones, sharded like their parameters."""
    if not parts.optimizers:
        return
    existing = _optimizer_tensors(parts)
    parameters = {name: parameter for parameter, name in _parameter_names(parts).items()}
    for name, entry in contents.items():
        if name.startswith("optimizer.") and entry is not None:
            of, _, field = name.removeprefix("optimizer.").rpartition(".")
            dtype = entry.properties.dtype
            if (mine := existing.get(name)) is not None and mine.size() == entry.size and mine.dtype == dtype:
                yield name, mine
            elif field == "step" or entry.size != parameters[of].size():
                yield name, torch.empty(entry.size, dtype=dtype)
            else:
                yield name, torch.empty_like(parameters[of], dtype=dtype, requires_grad=False)


def _find_group_mismatch(parts: TrainingParts, described: dict[str, Any], folder: Path) -> str | None:
    saved, ours = len(described["groups"]), len(_groups(parts))
    if saved == ours:
        return None
    return f"{folder} was saved with {saved} parameter groups, and the optimizer has {ours}: use the same groups"


def _load_optimizers(parts: TrainingParts, states: Mapping[str, torch.Tensor], described: dict[str, Any]) -> None:
    parameters = {name: parameter for parameter, name in _parameter_names(parts).items()}
    state_of: dict[torch.Tensor, dict[str, Any]] = {}
    for name, plain in described["state"].items():
        state_of[parameters[name]] = dict(plain)
    for key, tensor in states.items():
        name, _, field = key.removeprefix("optimizer.").rpartition(".")
        state_of[parameters[name]][field] = tensor
    for optimizer in parts.optimizers:
        optimizer.state.clear()
        optimizer.state.update({each: state_of[each] for each in parameters_of(optimizer) if each in state_of})
    for group, saved in zip(_groups(parts), described["groups"], strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})
        if group.get("fused") or group.get("capturable"):  # these need the step count on the device of the parameter
            for parameter in group["params"]:
                state = state_of.get(parameter, {})
                if isinstance(state.get("step"), torch.Tensor):
                    state["step"] = state["step"].to(parameter.device)


def _check_loadable(value: Any, name: str) -> Any:
    """Raise UsageError on saving for a value that could not be loaded: loading creates no objects of classes."""
    if isinstance(value, dict):
        for key, each in value.items():
            _check_loadable(each, f"{name}[{key!r}]")
    elif isinstance(value, list | tuple | set):
        for number, each in enumerate(value):
            _check_loadable(each, f"{name}[{number}]")
    elif not isinstance(value, bool | int | float | str | bytes | torch.Tensor | None):
        raise UsageError(
            f"the state of {name} is a {type(value).__name__}, which a snapshot cannot contain: "
            "give it a state_dict of tensors, numbers, strings, lists and dicts"
        )
    return value

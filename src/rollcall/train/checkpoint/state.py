"""What a snapshot holds, under flat names: `model.fc.weight`, `optimizer.fc.weight.exp_avg`, `rank-3.rng.torch` …

The names are those of the bare model, so that a snapshot fits whatever the model is wrapped in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from rollcall.train.strategies import averages, bare
from rollcall.world import World


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True)
class Parts:
    """All that makes up the state of a training."""

    model: nn.Module
    optimizer: Optimizer | None
    others: Mapping[str, Stateful]  # scheduler, scaler, the loader's position …


@dataclass(frozen=True)
class State:
    """Values of one rank. `resting` are tensors that only the optimizer's next step will change."""

    values: Values
    resting: frozenset[str]


def read_state(parts: Parts, world: World) -> State:
    """This rank's part of the state. Of what every rank has, each takes a share: together they have all."""
    tensors = {**model_tensors(parts.model), **_optimizer_tensors(parts)}
    own = _own_names(parts, tensors)
    equal = {name: each.nbytes for name, each in tensors.items() if name not in own and not _is_sharded(each)}
    # Under the common names is rank 0's: for DDP, and for ranks that were not there.
    mine = {**share_out(equal, world.size), **dict.fromkeys(own, 0)}
    values: Values = {name: each for name, each in tensors.items() if _is_sharded(each) or mine[name] == world.rank}
    resting = _resting(parts)
    if not world.is_first and not _broadcasts_buffers(parts.model):
        values |= {f"rank-{world.rank}.{name}": tensors[name] for name in own}
        resting |= {f"rank-{world.rank}.{name}" for name in resting & own}
    values |= {f"rank-{world.rank}.rng.{name}": state for name, state in read_rng(world.device).items()}
    if world.is_first:
        values |= {f"plain.{name}": _plain(value, name) for name, value in _plain_values(parts)}
    return State(values, frozenset(resting & values.keys()))


def load_state(parts: Parts, world: World, folder: Path, step: int) -> None:
    """Put all of a snapshot back in its place. That it fits was found out before."""
    known = storage.contents(folder)
    states = dict(_empty_states(parts, known))
    rng = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in known.items()
        if name.startswith(f"rank-{world.rank}.rng.") and entry is not None
    }
    plain = dict.fromkeys(name for name in known if name.startswith("plain."))
    tensors = {**model_tensors(parts.model), **states}
    values: Values = {**tensors, **rng, **plain}
    try:
        storage.read(values, folder)
    except storage.UnsafeError as error:
        raise UsageError(f"{folder} is not to be trusted ({error}): remove it, and start again") from None
    own = {f"rank-{world.rank}.{name}": tensors[name] for name in _own_names(parts, tensors)}
    storage.read({name: each for name, each in own.items() if name in known}, folder)
    if parts.optimizer is not None:
        _load_optimizer(parts, states, values["plain.optimizer"])
    if extra := values["plain.model"]:
        bare(parts.model).load_state_dict({**bare(parts.model).state_dict(), **extra})
    for name, other in parts.others.items():
        if f"plain.{name}" in values:
            other.load_state_dict(values[f"plain.{name}"])
    if rng:
        set_rng({name.rpartition(".")[2]: state for name, state in rng.items()}, world.device)
    else:  # a rank that was not there when the snapshot was taken
        reseed(step)


def model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's own tensors, not copies: what is read into them is in the model."""
    state = bare(model).state_dict()
    return {f"model.{_clean(name)}": each for name, each in state.items() if isinstance(each, torch.Tensor)}


def _own_names(parts: Parts, tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """What may differ from rank to rank: what forward changes, and all, where each rank trains for itself."""
    if not averages(parts.model):
        return set(tensors)
    names = {f"model.{_clean(name)}" for name, _ in bare(parts.model).named_buffers()}
    return names & tensors.keys()


def _broadcasts_buffers(model: nn.Module) -> bool:
    """Whether every forward pass begins with rank 0's buffers."""
    return isinstance(model, DistributedDataParallel) and bool(model.broadcast_buffers)


def share_out(sizes_bytes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Which rank writes what: the largest first, each to the one that has least so far. Equal on all ranks."""
    load = [0] * ranks
    owner = {}
    for name, size_bytes in sorted(sizes_bytes.items(), key=lambda item: (-item[1], item[0])):
        rank = load.index(min(load))
        owner[name] = rank
        load[rank] += size_bytes
    return owner


def optimizer_names(parts: Parts) -> list[str]:
    """The parameters that the optimizer changes."""
    if parts.optimizer is None:
        return []
    names = _names(parts)
    return [names[each] for group in parts.optimizer.param_groups for each in group["params"]]


def _clean(name: str) -> str:
    return name.replace("_orig_mod.", "")  # torch.compile's


def _is_sharded(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, DTensor)


def _resting(parts: Parts) -> set[str]:
    if parts.optimizer is None:
        return set()
    return {f"model.{name}" for name in _names(parts).values()} | _optimizer_tensors(parts).keys()


def _names(parts: Parts) -> dict[torch.Tensor, str]:
    """The parameters that the optimizer has, by their names in the bare model."""
    return {parameter: _clean(name) for name, parameter in bare(parts.model).named_parameters()}


def _optimizer_tensors(parts: Parts) -> dict[str, torch.Tensor]:
    """Read as they are. (Torch's get_state_dict would take a first step for an optimizer that has not yet.)"""
    if parts.optimizer is None:
        return {}
    names = _names(parts)
    return {
        f"optimizer.{names[parameter]}.{key}": value
        for parameter, state in parts.optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    }


def _plain_values(parts: Parts) -> Iterator[tuple[str, Any]]:
    model = bare(parts.model).state_dict()
    yield "model", {name: each for name, each in model.items() if not isinstance(each, torch.Tensor)}
    if parts.optimizer is not None:
        yield "optimizer", _describe_optimizer(parts, parts.optimizer)
    for name, other in parts.others.items():
        yield name, other.state_dict()


def _describe_optimizer(parts: Parts, optimizer: Optimizer) -> dict[str, Any]:
    names = _names(parts)
    groups = [{**group, "params": [names[each] for each in group["params"]]} for group in optimizer.param_groups]
    state = {
        names[parameter]: {key: value for key, value in state.items() if not isinstance(value, torch.Tensor)}
        for parameter, state in optimizer.state.items()
    }
    return {"groups": groups, "state": state}


def _empty_states(parts: Parts, known: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Room for the optimizer's tensors of the snapshot, sharded as their parameters are."""
    if parts.optimizer is None:
        return
    parameters = {name: parameter for parameter, name in _names(parts).items()}
    for name, entry in known.items():
        if name.startswith("optimizer.") and entry is not None:
            of, _, field = name.removeprefix("optimizer.").rpartition(".")
            dtype = entry.properties.dtype
            if field == "step" or entry.size != parameters[of].size():
                yield name, torch.empty(entry.size, dtype=dtype)
            else:
                yield name, torch.empty_like(parameters[of], dtype=dtype, requires_grad=False)


def _load_optimizer(parts: Parts, states: Mapping[str, torch.Tensor], described: dict[str, Any]) -> None:
    optimizer = parts.optimizer
    assert optimizer is not None
    parameters = {name: parameter for parameter, name in _names(parts).items()}
    optimizer.state.clear()
    for name, plain in described["state"].items():
        optimizer.state[parameters[name]] = dict(plain)
    for key, tensor in states.items():
        name, _, field = key.removeprefix("optimizer.").rpartition(".")
        optimizer.state[parameters[name]][field] = tensor
    for group, saved in zip(optimizer.param_groups, described["groups"], strict=True):
        group.update({key: value for key, value in saved.items() if key != "params"})
        if group.get("fused") or group.get("capturable"):  # these count steps where the parameters are
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                if isinstance(state.get("step"), torch.Tensor):
                    state["step"] = state["step"].to(parameter.device)


def _plain(value: Any, name: str) -> Any:
    """Refuse, on the way in, what could not come out again: loading knows no classes."""
    if isinstance(value, dict):
        for key, each in value.items():
            _plain(each, f"{name}[{key!r}]")
    elif isinstance(value, list | tuple | set):
        for number, each in enumerate(value):
            _plain(each, f"{name}[{number}]")
    elif not isinstance(value, bool | int | float | str | bytes | torch.Tensor | None):
        raise UsageError(
            f"the state of {name} is a {type(value).__name__}, which a snapshot does not hold: "
            "give it a state_dict of tensors, numbers, strings, lists and dicts"
        )
    return value

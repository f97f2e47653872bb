"""Loads a checkpoint into a model: each rank reads only its part, and nothing is whole on a device."""

from pathlib import Path

import torch
from torch import nn

from rollcall.train.consensus import fail_if_any
from rollcall.train.weights.mismatch import describe_mismatch
from rollcall.train.weights.sources import SourceError, open_source, strip_prefix
from rollcall.world import World

_REMEDY = "use the checkpoint of this model"


def load_weights(model: nn.Module, path: Path, world: World) -> None:
    """All ranks end with one sentence if the checkpoint lacks a tensor, has another, or one of another shape."""
    source, problem = None, None
    try:
        source = open_source(path)
    except SourceError as error:
        problem = str(error)
    fail_if_any(world, problem)
    assert source is not None
    state = {name: each for name, each in model.state_dict().items() if isinstance(each, torch.Tensor)}
    prefix = strip_prefix(source.shapes, set(state))
    shapes = {name.removeprefix(prefix): shape for name, shape in source.shapes.items()}
    ours = {name: list(each.shape) for name, each in state.items()}
    found = describe_mismatch(shapes, ours, _tied_names(model, set(shapes)))
    fail_if_any(world, f"{path} is of another model: {found}: {_REMEDY}" if found else None)
    source.read({f"{prefix}{name}": each for name, each in state.items() if name in shapes})


def _tied_names(model: nn.Module, saved: set[str]) -> set[str]:
    """Names parameters that are one and the same as one in the file: a file may contain each of them once."""
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    return {name for tied in names.values() if tied & saved for name in tied}

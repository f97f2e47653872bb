"""Saves and loads: tensors without data are saved as empty ones, and nothing is loaded to a device that is not there.

A checkpoint of a rehearsal has the names, and no weights.
"""

import importlib
import importlib.util
import os
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from rollcall.rehearse.rank.tensors import Data


def install(data: Data) -> None:
    def real(value: Any) -> Any:
        if not isinstance(value, FakeTensor):
            return value
        known = data.get(value.detach())
        return torch.empty(0, dtype=value.dtype, device="cpu") if known is None else known.clone()

    module: Any = torch
    module.save = _save(torch.save, real)
    module.load = _load(torch.load)
    if importlib.util.find_spec("safetensors"):
        safetensors: Any = importlib.import_module("safetensors.torch")
        safetensors.save_file = _save_file(safetensors.save, real)


def _save(plain: Any, real: Any) -> Any:
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            plain(pytree.tree_map(real, obj), f, *args, **kwargs)
            return
        with open(f, "wb") as file:  # here, in Python: torch would open it in C++, where it is not redirected
            plain(pytree.tree_map(real, obj), file, *args, **kwargs)

    return save


def _load(plain: Any) -> Any:
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """First to the CPU: the device has no memory to read a file into."""
        if isinstance(f, (str, os.PathLike)):
            with open(f, "rb") as file:  # as above: it may be one that was saved
                return load(file, map_location, *args, **kwargs)
        loaded = plain(f, "cpu", *args, **kwargs)
        wants_device = map_location is not None and not callable(map_location) and not isinstance(map_location, dict)
        if wants_device and torch.device(map_location).type == "cuda":
            return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(map_location), loaded)
        return loaded

    return load


def _save_file(to_bytes: Any, real: Any) -> Any:
    def save_file(tensors: dict[str, Any], filename: Any, metadata: Any = None) -> None:
        """In Python, for the same reason: safetensors opens its files in Rust."""
        with open(filename, "wb") as file:
            file.write(to_bytes({name: real(tensor) for name, tensor in tensors.items()}, metadata))

    return save_file

"""Saves and loads: a tensor without data is saved as its shape, and loaded as a tensor without data.

A checkpoint of a rehearsal has names, shapes and dtypes, and no weights. Only a rehearsal can load it.
"""

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from rollcall.rehearse.rank.tensors import PretendedDevice

_mode: PretendedDevice
_place: torch.device | None = None  # the device that torch.load gets as map_location; none: that of each saved tensor


def install(mode: PretendedDevice) -> None:
    global _mode
    _mode = mode
    module: Any = torch
    pretended: Any = FakeTensor
    pretended.__reduce_ex__ = _reduce
    torch.serialization.add_safe_globals([rebuild])
    module.save = save_from_python(torch.save)
    module.load = _load(torch.load)
    if importlib.util.find_spec("safetensors"):
        safetensors: Any = importlib.import_module("safetensors.torch")
        safetensors.save_file = _save_file
        safetensors.load_file = _load_file(safetensors.load)


def _reduce(tensor: FakeTensor, _: Any) -> Any:
    """How a tensor without data is pickled, wherever it is: in a state, a module, a queue."""
    known = _mode.data.get(tensor.detach())
    data = None if known is None else known.clone()
    layout = tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device)
    return rebuild, (*layout, tensor.requires_grad, "_is_param" in tensor.__dict__, data)


def rebuild(
    shape: Any, stride: Any, dtype: torch.dtype, device: str, requires_grad: bool, is_parameter: bool, data: Any
) -> torch.Tensor:
    made = data
    place = _place or torch.device(device)
    if data is None or place.type != "cpu":
        made = _mode.make_unknown(shape, stride, dtype, place)
    if data is not None and made is not data:
        _mode.data.set(made, data)
    if is_parameter:
        return torch.nn.Parameter(made, requires_grad)
    return made.requires_grad_(requires_grad)  # type: ignore[no-any-return]


@contextmanager
def _loading_to(place: torch.device | None) -> Iterator[None]:
    global _place
    before, _place = _place, place
    try:
        yield
    finally:
        _place = before


def save_from_python(plain: Any) -> Any:
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            plain(obj, f, *args, **kwargs)
            return
        with open(f, "wb") as file:  # here, in Python: torch would open it in C++, where it is not redirected
            plain(obj, file, *args, **kwargs)

    return save


def _load(plain: Any) -> Any:
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Loads to the CPU first: the device has no memory to read a file into."""
        if isinstance(f, (str, os.PathLike)):
            with open(f, "rb") as file:  # as above: it may be one that was saved
                return read(file.name if kwargs.get("mmap") else file, map_location, *args, **kwargs)
        return read(f, map_location, *args, **kwargs)

    def read(f: Any, map_location: Any, *args: Any, **kwargs: Any) -> Any:
        target = _target(map_location)
        with _loading_to(target or (None if map_location is None else torch.device("cpu"))):
            loaded = plain(f, "cpu", *args, **kwargs)
        if target is not None and target.type == "cuda":
            return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(target), loaded)
        return loaded

    return load


def _target(map_location: Any) -> torch.device | None:
    """The device of map_location, which may be a name, a dict or a function."""
    if callable(map_location):
        map_location = map_location(_AskedStorage(), "cuda:0")
    elif isinstance(map_location, dict):
        map_location = next((device for device in map_location.values() if "cuda" in str(device)), None)
    return torch.device(map_location) if isinstance(map_location, (str, int, torch.device)) else None


class _AskedStorage:
    """Finds out to which device a function moves storages."""

    def cuda(self, index: int | None = None, *_: Any) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device() if index is None else index)

    def cpu(self) -> "_AskedStorage":
        return self


_PICKLED = b"PK"  # the first bytes of what torch.save writes, and of no file of safetensors: those begin with a length


def _save_file(tensors: dict[str, Any], filename: Any, metadata: Any = None) -> None:
    """As torch.save does: safetensors opens its files in Rust, and wants data."""
    torch.save(tensors, filename)


def _load_file(from_bytes: Any) -> Any:
    def load_file(filename: Any, device: Any = "cpu") -> dict[str, torch.Tensor]:
        with open(filename, "rb") as file:
            if file.read(len(_PICKLED)) == _PICKLED:
                file.seek(0)
                return torch.load(file, device)  # type: ignore[no-any-return]
            file.seek(0)
            return {name: tensor.to(device) for name, tensor in from_bytes(file.read()).items()}

    return load_file

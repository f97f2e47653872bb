"""Checkpoints that can be read part by part: safetensors, torch.save, torch.distributed.checkpoint (DCP)."""

import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from rollcall.train.checkpoint import storage
from rollcall.train.weights.parts import copy_own_part
from rollcall.train.weights.safetensors import FormatError, SafetensorsFile

_INDEX = "model.safetensors.index.json"
_KNOWN = "a .safetensors file, a folder of them, a file of torch.save, or a folder of torch.distributed.checkpoint"
# Under which a program may have saved its model, beside other things.
_PREFIXES = ("model.", "module.", "_orig_mod.")


class Source(Protocol):
    """A checkpoint; `shapes` are those of all its tensors, by name."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        """Fill each tensor, or this rank's part of it, with that of this name."""


class SourceError(ValueError):
    """The checkpoint cannot be read; the message says why."""


def open_source(path: Path) -> Source:
    """The kind of a checkpoint follows from its files."""
    try:
        if path.is_dir():
            return _open_folder(path)
        if not path.exists():
            raise SourceError(f"{path} does not exist: expected {_KNOWN}")
        return SafetensorsSource([path]) if path.suffix == ".safetensors" else TorchSource(path)
    except FormatError as error:
        raise SourceError(f"{path} cannot be read ({error}): write it again") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error.strerror}): check its path and permissions") from None


def _open_folder(path: Path) -> Source:
    if (path / storage.METADATA).exists():
        return DcpSource(path)
    if (path / _INDEX).exists():
        return SafetensorsSource(_indexed_files(path))
    if files := sorted(path.glob("*.safetensors")):
        return SafetensorsSource(files)
    raise SourceError(f"{path} contains no checkpoint: expected {_KNOWN}")


def _indexed_files(path: Path) -> list[Path]:
    try:
        names = set(json.loads((path / _INDEX).read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError):
        raise SourceError(f"{path / _INDEX} is not an index of safetensors files: write it again") from None
    if missing := sorted(name for name in names if not (path / name).is_file()):
        raise SourceError(f"{path} lacks {missing[0]}, which {_INDEX} names: copy it there")
    return [path / name for name in sorted(names)]


class SafetensorsSource:
    def __init__(self, paths: list[Path]) -> None:
        files = [SafetensorsFile(path) for path in paths]
        self._files = {name: file for file in files for name in file.entries}
        self.shapes = {name: file.entries[name].shape for name, file in self._files.items()}

    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        for name, target in targets.items():
            copy_own_part(target, self._files[name].tensor(name))


class TorchSource:
    """A state dict that torch.save has written, by itself or under the key `model`. The file is mapped."""

    def __init__(self, path: Path) -> None:
        if not zipfile.is_zipfile(path):  # only such a file can be mapped
            raise SourceError(f"{path} is not a file that torch.save has written since torch 1.6: save it again")
        try:
            saved = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise SourceError(f"{path} is not a file of torch.save that is safe to load ({reason})") from None
        self._tensors = dict(_find_state(saved))
        if not self._tensors:
            raise SourceError(f"{path} contains no tensors by name: expected a state dict")
        self.shapes = {name: tuple(each.shape) for name, each in self._tensors.items()}

    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        for name, target in targets.items():
            copy_own_part(target, self._tensors[name])


def _find_state(saved: Any) -> dict[str, torch.Tensor]:
    if not isinstance(saved, dict):
        return {}
    state = next((saved[key] for key in ("model", "state_dict", "module") if isinstance(saved.get(key), dict)), saved)
    return {name: each for name, each in state.items() if isinstance(each, torch.Tensor)}


class DcpSource:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            contents = storage.contents(path)
        except (storage.UnsafeError, pickle.UnpicklingError, EOFError) as error:
            raise SourceError(f"{path / storage.METADATA} cannot be read ({error}): save it again") from None
        tensors = {name: tuple(each.size) for name, each in contents.items() if each is not None}
        # A snapshot also contains the optimizer and the random generators.
        of_model = {name: shape for name, shape in tensors.items() if name.startswith("model.")}
        self.shapes = of_model or tensors

    def read(self, targets: Mapping[str, torch.Tensor]) -> None:
        storage.read(dict(targets), self._path)


def strip_prefix(names: Mapping[str, Any], wanted: set[str]) -> str:
    """What stands before every name in the checkpoint, and not in the model."""
    for prefix in _PREFIXES:
        if names and all(name.startswith(prefix) for name in names) and not all(n.startswith(prefix) for n in wanted):
            return prefix
    return ""

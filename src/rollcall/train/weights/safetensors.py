"""Reads and writes safetensors files: eight bytes with the length of a JSON header, the header, then the tensors.

Not with the safetensors package: it is not a dependency, and the format is small. A file is mapped, so that only the
rows that a rank takes are read from the disk.
"""

import json
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MOST_HEADER_BYTES = 100_000_000  # the limit of the format itself


class FormatError(ValueError):
    """The file is not a safetensors file, or is cut off."""


@dataclass(frozen=True)
class Entry:
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # in the file
    end: int


class SafetensorsFile:
    """The tensors of one file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            header, first = _read_header(file.read(8), file.read, size_bytes)
            # Copy on write: torch has no read-only tensors.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.entries = {name: _entry(name, each, first, size_bytes) for name, each in header.items()}

    def tensor(self, name: str) -> torch.Tensor:
        """A view of the mapped file: taking a part of it reads only that part."""
        entry = self.entries[name]
        if entry.begin == entry.end:
            return torch.empty(entry.shape, dtype=entry.dtype)
        raw = torch.frombuffer(self._map, dtype=torch.uint8, count=entry.end - entry.begin, offset=entry.begin)
        if entry.begin % entry.dtype.itemsize:  # only then a copy is needed
            raw = raw.clone()
        return raw.view(entry.dtype).view(entry.shape)


def _read_header(length: bytes, read: Callable[[int], bytes], size_bytes: int) -> tuple[dict[str, dict[str, Any]], int]:
    (count,) = struct.unpack("<Q", length) if len(length) == 8 else (size_bytes,)
    if count > min(size_bytes - 8, _MOST_HEADER_BYTES):
        raise FormatError("its header is longer than the file")
    try:
        header = json.loads(read(count))
    except ValueError:
        raise FormatError("its header is not JSON") from None
    if not isinstance(header, dict):
        raise FormatError("its header is not an object")
    return {name: each for name, each in header.items() if name != "__metadata__"}, 8 + count


def _entry(name: str, found: Mapping[str, Any], first: int, size_bytes: int) -> Entry:
    try:
        dtype, shape = _DTYPES[found["dtype"]], tuple(int(size) for size in found["shape"])
        begin, end = (first + int(each) for each in found["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"its {name} is not described in a way that is known") from None
    if not first <= begin <= end <= size_bytes:
        raise FormatError(f"its {name} lies beyond the end of the file")
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise FormatError(f"its {name} has {end - begin} bytes, which does not fit its shape {list(shape)}")
    return Entry(dtype, shape, begin, end)


def write(path: Path, shapes: Mapping[str, tuple[torch.dtype, torch.Size]], tensors: Iterable[torch.Tensor]) -> None:
    """Write a file under a temporary name, tensor after tensor, sync it, and rename it. `tensors` are in that order."""
    header, position = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape) in shapes.items():
        end = position + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [position, end]}  # type: ignore[dict-item]
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned
    draft = path.with_name(f".{path.name}.writing")
    with open(draft, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            if tensor.numel():
                file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def find_unknown(dtypes: Mapping[str, torch.dtype]) -> str | None:
    unknown = next((name for name, dtype in dtypes.items() if dtype not in _NAMES), None)
    return None if unknown is None else f"{unknown} is {dtypes[unknown]}, which a safetensors file cannot contain"

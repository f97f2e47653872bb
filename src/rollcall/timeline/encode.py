"""Columns of numbers → a short text that a page can hold.

Each column is written as differences where that makes it smaller, byte by byte in planes (all lowest bytes, then all
second ones, …), and deflated: browsers inflate that by themselves. assets/columns.js is the other side.
"""

import base64
import zlib
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray


class Column(TypedDict):
    length: int
    planes: int  # bytes of each number
    differences: bool
    data: str


def pack(values: NDArray[Any], differences: bool = False) -> Column:
    """Whole numbers from 0 to 2**48; with `differences` the steps from one to the next, of any sign."""
    numbers = values.astype(np.int64)
    if differences:
        steps = np.diff(numbers, prepend=0)
        numbers = (steps << 1) ^ (steps >> 63)  # the sign goes last, so that small steps stay small
    largest = int(numbers.max()) if len(numbers) else 0
    planes = max(1, (largest.bit_length() + 7) // 8)
    raw = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :planes]
    return {
        "length": len(values),
        "planes": planes,
        "differences": differences,
        "data": deflate(np.ascontiguousarray(raw.T).tobytes()),
    }


def deflate(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()

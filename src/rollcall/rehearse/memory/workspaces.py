"""Memory that kernels take from torch's allocator besides their results. Kernels that are not here are not modelled."""

from collections.abc import Iterator
from typing import Any

import torch

aten = torch.ops.aten

MATRIX_PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.addbmm.default,
    aten.mv.default,
    aten.addmv.default,
    aten.dot.default,
    aten._scaled_mm.default,
}
_FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_backward.default
_HOPPER = 9
_FLOAT_BYTES = 4


def cublas_bytes(capability: tuple[int, int]) -> int:
    """The workspace of a cuBLAS handle, by torch's default. Each thread that multiplies has one for each stream: the
    program's own, and the one in which backward runs. It is never freed."""
    return 32 << 20 if capability[0] >= _HOPPER else 2 * (4096 << 10) + 8 * (16 << 10)


def kernel_bytes(func: Any, args: tuple[Any, ...]) -> Iterator[int]:
    """What the kernel of an op takes while it runs."""
    if func is _FLASH_BACKWARD:
        yield from _flash_backward_bytes(args[1])


def _flash_backward_bytes(query: torch.Tensor) -> Iterator[int]:
    """Its sums for the gradient of the queries, in float32, and one number for each row."""
    batch, heads, length, width = query.shape
    rows = batch * heads * _round_up(length, 128)
    yield rows * _round_up(width, 32) * _FLOAT_BYTES
    yield rows * _FLOAT_BYTES


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit

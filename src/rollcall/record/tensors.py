"""What a record says of a tensor. Sparse, nested and other unusual tensors lack some of it: nothing here raises."""

from typing import Any, NamedTuple

import torch

_UNKNOWN = -1  # a size that differs within a nested tensor
# Of each layout, the parts that are sent in place of one block of memory.
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
# A subclass may do anything when it is asked for an attribute, so it is not asked.
_without_subclass = torch._C.DisableTorchFunctionSubclass


class Description(NamedTuple):
    size_bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    device: str


def describe(tensor: Any) -> Description:
    """Of any tensor; of what is none, nothing."""
    try:
        with _without_subclass():
            return Description(_size_bytes(tensor), _shape(tensor), tensor.dtype, tensor.device.type)
    except Exception:
        return Description(0, (), None, "")


def shape_of(tensor: Any) -> tuple[int, ...]:
    if type(tensor) is torch.Tensor and not tensor.is_nested:  # as most are
        return tuple(tensor.shape)
    return describe(tensor).shape


def version(tensor: Any) -> int:
    """How often a tensor was written to, as autograd counts it; 0 where it does not, as for inference tensors."""
    try:
        if type(tensor) is torch.Tensor:
            return _version(tensor)
        with _without_subclass():
            return _version(tensor)
    except Exception:
        return 0


def _version(tensor: Any) -> int:
    """A tensor and all its parts share one count: of a part it says nothing, since another may have been written to."""
    whole = tensor._base
    return int(tensor._version) if whole is None or whole.numel() <= tensor.numel() else 0


def _size_bytes(tensor: Any) -> int:
    try:
        if tensor.layout not in _PARTS:
            return int(tensor.nbytes)
        with torch._C._DisableTorchDispatch():  # no mode of the program sees that we look
            return sum(int(getattr(tensor, part)().nbytes) for part in _PARTS[tensor.layout])
    except Exception:
        return 0


def _shape(tensor: Any) -> tuple[int, ...]:
    try:
        return tuple(_size(tensor, dimension) for dimension in range(tensor.dim()))
    except Exception:
        return ()


def _size(tensor: Any, dimension: int) -> int:
    try:
        size = tensor.size(dimension)
        return size if isinstance(size, int) else _UNKNOWN  # a jagged tensor has a symbol
    except RuntimeError:
        return _UNKNOWN

"""Describes a tensor for a record. Sparse, nested and other tensors lack some attributes: nothing here raises, except
for what a signal handler or another thread of the program throws meanwhile."""

from typing import Any, NamedTuple

import torch

from rollcall.record.hooks.patching import leave_to_program

_UNKNOWN = -1  # a size that differs within a nested tensor
# Of each layout, the parts that are sent in place of one block of memory.
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


class _CannotBypass:
    """Used with a torch that has no way to bypass a subclass: such tensors are recorded without a description."""

    def __enter__(self) -> None:
        raise AttributeError("there is no torch._C.DisableTorchFunctionSubclass")

    def __exit__(self, *_: object) -> None: ...


# A subclass may run any code when an attribute is read, so its code is bypassed.
_without_subclass: Any = getattr(torch._C, "DisableTorchFunctionSubclass", _CannotBypass)


class Description(NamedTuple):
    size_bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    device: str


def describe(tensor: Any) -> Description:
    """Describes any tensor; empty for anything else."""
    try:
        if type(tensor) is torch.Tensor:
            return _describe(tensor)
        with _without_subclass():
            return _describe(tensor)
    except Exception as error:
        leave_to_program(error)
        return Description(0, (), None, "")


def _describe(tensor: Any) -> Description:
    return Description(_size_bytes(tensor), _shape(tensor), tensor.dtype, tensor.device.type)


def shape_of(tensor: Any) -> tuple[int, ...]:
    if type(tensor) is torch.Tensor and not tensor.is_nested:  # the usual case
        return tuple(tensor.shape)
    return describe(tensor).shape


def version(tensor: Any) -> int:
    """How often a tensor was written to, as autograd counts it; 0 where it does not, as for inference tensors."""
    try:
        if type(tensor) is torch.Tensor:
            return _version(tensor)
        with _without_subclass():
            return _version(tensor)
    except Exception as error:
        leave_to_program(error)
        return 0


def _version(tensor: Any) -> int:
    """A tensor and its views share one count, so the count of a view says nothing: another may have been written."""
    if tensor.is_inference():
        return 0
    whole = tensor._base
    return int(tensor._version) if whole is None or whole.numel() <= tensor.numel() else 0


def _size_bytes(tensor: Any) -> int:
    try:
        if tensor.layout not in _PARTS:
            size_bytes = tensor.nbytes
            return size_bytes if isinstance(size_bytes, int) else 0  # a symbol: to ask for its value would fix it
        with torch._C._DisableTorchDispatch():  # bypasses the dispatch modes of the program
            return sum(int(getattr(tensor, part)().nbytes) for part in _PARTS[tensor.layout])
    except Exception as error:
        leave_to_program(error)
        return 0


def _shape(tensor: Any) -> tuple[int, ...]:
    try:
        return tuple(_size(tensor, dimension) for dimension in range(tensor.dim()))
    except Exception as error:
        leave_to_program(error)
        return ()


def _size(tensor: Any, dimension: int) -> int:
    try:
        size = tensor.size(dimension)
        return size if isinstance(size, int) else _UNKNOWN  # a jagged tensor has a symbol
    except RuntimeError:
        return _UNKNOWN

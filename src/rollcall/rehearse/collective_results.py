"""Computes what each rank receives from a collective, from what all ranks contribute.

Runs in the ranks, and in the launcher, which compares what a rank received with the right result.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

Data = tuple[str, tuple[int, ...], bytes]  # dtype, shape, bytes: can be pickled and compared


class Given(NamedTuple):
    """What one rank contributes to an op. `tensors` is None if the data is not known."""

    op: str
    tensors: tuple[Data, ...] | None
    reduce: str = ""
    root: int = -1  # a rank of the group
    splits: tuple[int, ...] = ()


class Took(NamedTuple):
    """What one rank received from an op."""

    member: int  # its place in the group
    size: int  # of the group
    digest: str
    record: int = 0  # the number of the op in the ring of the rank
    place: str = ""  # train.py:33


class Key(NamedTuple):
    """The same for all ranks that take part in one op: the group and a number; of a message also its two ends."""

    group: str
    number: int
    source: int = -1
    target: int = -1
    tag: int = 0


def pack(tensor: torch.Tensor) -> Data:
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, device="cpu")
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), flat.numpy().tobytes()


def unpack(data: Data) -> torch.Tensor:
    name, shape, raw = data
    dtype = getattr(torch, name)
    if not raw:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def combine(given: Sequence[Given], index: int) -> tuple[torch.Tensor, ...] | None:
    """What the rank at this place of the group receives. None if that is not known, or if the ranks make different
    calls: explain reports those."""
    got: tuple[torch.Tensor, ...] | None
    try:
        if given[0].op in _FROM_ROOT:
            giver = given[given[index].root]
            tensors = None if giver.tensors is None else [unpack(each) for each in giver.tensors]
            got = None if tensors is None else _FROM_ROOT[given[0].op](tensors, index)
            return got
        if len({each.op for each in given}) > 1 or any(each.tensors is None for each in given):
            return None
        all_tensors = [[unpack(data) for data in each.tensors or ()] for each in given]
        got = _COMBINE[given[0].op](all_tensors, index, given)
        return got
    except (IndexError, RuntimeError, ValueError, KeyError):
        return None


Tensors = list[list[torch.Tensor]]
Got = tuple[torch.Tensor, ...]


def _reduce(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(tensors)
    if op in ("SUM", "AVG"):
        total = stacked.sum(0, dtype=stacked.dtype)
        return total if op == "SUM" else total / len(tensors)
    if op in ("MIN", "MAX"):
        return stacked.amin(0) if op == "MIN" else stacked.amax(0)
    if op == "PRODUCT":
        return stacked.prod(0, dtype=stacked.dtype)
    if op in ("BAND", "BOR", "BXOR"):
        function = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[op]
        result = tensors[0]
        for each in tensors[1:]:
            result = function(result, each)
        return result
    raise KeyError(op)


def _all_reduce(tensors: Tensors, index: int, given: Sequence[Given]) -> Got:
    return tuple(_reduce(given[index].reduce, list(each)) for each in zip(*tensors, strict=True))


def _reduce_to_root(tensors: Tensors, index: int, given: Sequence[Given]) -> Got:
    return _all_reduce(tensors, index, given) if given[index].root == index else tuple(tensors[index])


def _all_gather(tensors: Tensors, index: int, given: Sequence[Given]) -> Got:
    return tuple(each for its in tensors for each in its)


def _gather(tensors: Tensors, index: int, given: Sequence[Given]) -> Got:
    return _all_gather(tensors, index, given) if given[index].root == index else ()


def _reduce_scatter(tensors: Tensors, index: int, given: Sequence[Given]) -> Got:
    if len(tensors[0]) == 1 and len(tensors) > 1:  # all parts in one tensor
        return (_reduce(given[index].reduce, [its[0].flatten().chunk(len(tensors))[index] for its in tensors]),)
    return (_reduce(given[index].reduce, [its[index] for its in tensors]),)


def _all_to_all(tensors: Tensors, index: int, given: Sequence[Given]) -> Got:
    return tuple(its[index] for its in tensors)


def _all_to_all_single(tensors: Tensors, index: int, given: Sequence[Given]) -> Got:
    parts = []
    for its, each in zip(tensors, given, strict=True):
        sizes = list(each.splits) or [its[0].shape[0] // len(tensors)] * len(tensors)
        parts.append(torch.split_with_sizes(its[0], sizes)[index])
    return (torch.cat(parts),)


def _from_root(tensors: list[torch.Tensor], index: int) -> Got:
    return tuple(tensors)


def _scatter(tensors: list[torch.Tensor], index: int) -> Got:
    return (tensors[index],)


_FROM_ROOT: dict[str, Any] = {"broadcast": _from_root, "scatter": _scatter, "message": _from_root}
_COMBINE: dict[str, Any] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce_to_root,
    "all_gather": _all_gather,
    "gather": _gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
}

"""Ops whose result has a shape, or is a number, that depends on data which is not known.

`--assume moe.py:33=128` says how many rows such an op gives at a line; below 1 it is a share of the largest possible
number.
"""

import math
from typing import Any

import torch

from rollcall.rehearse.rank import values
from rollcall.rehearse.rank.unsupported import Unsupported

aten = torch.ops.aten


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an op on tensors without data, under an assumption. The fake mode is entered."""
    kind = str(func._schema.returns[0].type)
    if kind in _NUMBERS:  # torch.equal, and others that answer a question
        return values.read_plainly(_NUMBERS[kind])
    if func is aten.bincount.default and (least := _least(args, kwargs)):
        values.notes.note(f"no number above {least - 1}")
        return args[0].new_empty(least)
    name = func._schema.name.partition("::")[2]
    share = values.notes.assumed_size()
    if share is None or func not in _SIZED:
        raise Unsupported(f"{name} cannot be rehearsed: {_WHY}", _advice(func in _SIZED))
    return _SIZED[func](share, *args)


def packed(lengths: torch.Tensor) -> tuple[int, torch.Tensor]:
    """Of pack_padded_sequence, whose lengths tell the shape: how many rows, and how many sequences have each place."""
    return int(lengths.sum()), torch.bincount(lengths).flip(0).cumsum(0).flip(0)[1:]


_NUMBERS = {"bool": torch.bool, "int": torch.int64, "float": torch.float32}
_WHY = "the shape of its result depends on data that is not known here"


def _advice(can_be_assumed: bool) -> str:
    if not can_be_assumed:
        return "make its size fixed, or leave this part out of the rehearsal"
    return f"say how many rows it gives, as in --assume {values.users_place()}=128, or =0.5 for a half of them"


def _least(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    return int(kwargs.get("minlength", args[2] if len(args) > 2 else 0))


def _rows(share: float, most: int) -> int:
    return min(most, round(share * most) if share < 1 else int(share))


def _nonzero(share: float, mask: torch.Tensor) -> torch.Tensor:
    return mask.new_empty((_rows(share, mask.numel()), mask.dim()), dtype=torch.int64)


def _masked_select(share: float, tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)  # type: ignore[no-untyped-call]
    return tensor.new_empty(_rows(share, math.prod(shape)))


def _index(share: float, tensor: torch.Tensor, indices: list[torch.Tensor | None]) -> torch.Tensor:
    """A mask of several dimensions is that many lists of places."""
    places: list[torch.Tensor | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            places.append(index)
        else:
            places += [index.new_empty(_rows(share, index.numel()), dtype=torch.int64) for _ in range(index.dim())]
    result: torch.Tensor = aten.index.Tensor(tensor, places)
    return result


_SIZED: dict[Any, Any] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
}

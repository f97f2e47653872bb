"""The signature of an op: shapes, dtypes, device and splits of what it is called with, which ranks must agree on."""

from typing import Any

import torch

from rollcall.record.hooks.sink import CallArgs, this_thread
from rollcall.record.tensors import describe

_PLAIN = {torch.Tensor}


def measure(call: CallArgs) -> tuple[int, bool, Any]:
    """How many bytes an op is about, whether they are on a GPU, and the key of its signature."""
    if len(call.tensors) != 1 and set(map(type, call.tensors)) <= _PLAIN:
        try:
            return _measure_plain(call)
        except RuntimeError:  # one is sparse or nested
            pass
    found = [describe(tensor) for tensor in call.tensors]
    what: tuple[Any, ...] = (tuple((each.shape, each.dtype) for each in found), None)
    if len(found) == 1:
        what = (found[0].shape, found[0].dtype)
    size_bytes = sum(each.size_bytes for each in found)
    return size_bytes, found[0].device == "cuda", (*what, call.splits, this_thread.object_count)


def _measure_plain(call: CallArgs) -> tuple[int, bool, Any]:
    """The same in less time: DDP sends all buffers of a module at once."""
    tensors = call.tensors
    what = tuple([(tensor.shape, tensor.dtype) for tensor in tensors])
    size_bytes = sum([tensor.nbytes for tensor in tensors])
    return size_bytes, bool(tensors) and tensors[0].is_cuda, (what, None, call.splits, this_thread.object_count)


def value(call: CallArgs) -> dict[str, Any]:
    """The signature as the ring has it."""
    found = [describe(tensor) for tensor in call.tensors]
    count = this_thread.object_count
    return {
        "shapes": [list(each.shape) for each in found],
        "dtypes": [str(each.dtype).removeprefix("torch.") for each in found],
        "device": found[0].device if found else "",
        "splits": call.splits,
        **({"objects": count} if count else {}),
    }

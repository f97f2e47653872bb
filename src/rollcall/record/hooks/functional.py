"""Functional collectives, which DTensor and compiled programs use: ops of torch, called by their objects.

What an op object calls is replaced, not the object: the compiler knows ops by their identity, and goes on to.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch.distributed import distributed_c10d

from rollcall.record.hooks.arguments import REDUCE
from rollcall.record.hooks.process_group import inside
from rollcall.record.hooks.sink import Seen, Told
from rollcall.record.ring_format import ASYNC, OP, WAITED
from rollcall.record.tensors import shape_of

# Per op: what it is, and where its arguments are: reduce op or root, and the group. -1: it has none.
_OPS: dict[str, tuple[str, int, int]] = {
    "all_reduce": ("all_reduce", 1, 2),
    "all_reduce_": ("all_reduce", 1, 2),
    "all_reduce_coalesced": ("all_reduce", 1, 2),
    "all_reduce_coalesced_": ("all_reduce", 1, 2),
    "all_gather_into_tensor": ("all_gather", -1, 2),
    "all_gather_into_tensor_out": ("all_gather", -1, 2),
    "all_gather_into_tensor_coalesced": ("all_gather", -1, 2),
    "reduce_scatter_tensor": ("reduce_scatter", 1, 3),
    "reduce_scatter_tensor_out": ("reduce_scatter", 1, 3),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1, 3),
    "all_to_all_single": ("all_to_all", -1, 3),
    "broadcast": ("broadcast", 1, 2),
    "broadcast_": ("broadcast", 1, 2),
}
_BY_ITSELF = ASYNC | WAITED  # its result is waited for when it is used
_SPACES = ("_c10d_functional", "_c10d_functional_autograd")
_pending: dict[int, int] = {}  # by the memory of a result: the mark of the op that fills it


def put_up() -> None:
    for space in _SPACES:
        for name, (op, option, group) in _OPS.items():
            _replace(space, name, _op(OP[op], option, group))
    _replace("_c10d_functional", "wait_tensor", _wait)


def _replace(space: str, name: str, make: Callable[[Any], Any]) -> None:
    packet = getattr(getattr(torch.ops, space), name, None)  # not every torch has all
    if packet is not None:
        for called in (packet, packet.default):
            called._op = make(called._op)


def _op(op: int, option: int, place: int) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if inside.op or kwargs or len(args) <= place or not _is_real(args[0]):
                return original(*args, **kwargs)  # recorded already; or a compiler looks at it, and nothing is sent
            mark = Told.listener.enter(op, _group(args[place]), _seen(op, args, option))
            inside.op = True
            try:
                result = original(*args)
            except BaseException:
                Told.listener.failed(mark)
                raise
            finally:
                inside.op = False
            Told.listener.issued(mark)
            for tensor in _flat(result):
                memory = _memory(tensor)
                if (older := _pending.pop(memory, None)) is not None:
                    Told.listener.dropped(older)
                _pending[memory] = mark
            return result

        return recorded

    return make


def _seen(op: int, args: tuple[Any, ...], option: int) -> Seen:
    tensors = _flat(args[0])
    if op == OP["broadcast"]:
        return Seen(tensors, args[option], flags=_BY_ITSELF)
    if op == OP["all_to_all"]:
        received, sent = tuple(args[1]), tuple(args[2])
        shape = (sum(received), *shape_of(tensors[0])[1:]) if tensors else ()
        return Seen(tensors, splits=("single", received, sent, shape), flags=_BY_ITSELF)
    reduce = REDUCE.get(str(args[option]).upper(), 0) if option > 0 else 0
    return Seen(tensors, reduce=reduce, flags=_BY_ITSELF)


def _is_real(value: Any) -> bool:
    """Not a compiler's stand-in, which is of a class of its own."""
    return all(type(tensor) is torch.Tensor and not tensor.is_meta for tensor in _flat(value))


def _flat(value: Any) -> tuple[torch.Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def _memory(tensor: torch.Tensor) -> int:
    """Where it is; 0 of one that is not in one place, such as a sparse one."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def _group(named: Any) -> Any:
    return distributed_c10d._resolve_process_group(cast(Any, named)) if isinstance(named, str) else named


def _wait(original: Any) -> Any:
    def wait(tensor: Any) -> Any:
        mark = _pending.pop(_memory(tensor), -1) if _pending and _is_real(tensor) else -1
        if mark < 0:
            return original(tensor)
        Told.listener.waiting(mark)
        try:
            result = original(tensor)
        except BaseException:
            Told.listener.failed(mark)
            raise
        Told.listener.completed(mark)
        return result

    return wait

"""Reads what the methods of ProcessGroup are called with: the group first, then arguments in the order of each."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeGuard

import torch
import torch.distributed as dist

from rollcall.record.hooks import sink
from rollcall.record.hooks.sink import CallArgs
from rollcall.record.ring_format import ASYNC, REDUCE_OPS
from rollcall.record.tensors import shape_of

Reader = Callable[[tuple[Any, ...], dict[str, Any]], CallArgs]
REDUCE = {name: number for number, name in enumerate(REDUCE_OPS)}


def is_repeatable(value: Any) -> TypeGuard[Collection[Any]]:
    """Whether it can be read without taking it from the program: a generator can be read only once."""
    return isinstance(value, Collection)


def _flat(value: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if len(value) == 1 and isinstance(value[0], torch.Tensor):  # the usual case
        return (value[0],)
    return tuple(tensor for each in value for tensor in _flat(each))


def _option(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> Any:
    return kwargs.get("opts") if "opts" in kwargs else args[place] if len(args) > place else None


def reduce_op(opts: Any) -> int:
    """Its number in the ring."""
    kind = opts.reduceOp.op  # ReduceOp wraps its kind
    known = _reduce_kinds.get(kind.value)
    if known is None:
        known = _reduce_kinds[kind.value] = REDUCE.get(kind.name, 0)
    return known


_reduce_kinds: dict[int, int] = {}  # kept, since asking for the name of a kind is slow
# Looked up once. The second makes a CallArgs without the cost of its constructor.
_AllreduceOptions, _new = dist.AllreduceOptions, tuple.__new__


def _flags(opts: Any) -> int:
    return ASYNC if getattr(opts, "asyncOp", True) else 0


def _all_reduce_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    """The op that most programs call most often: the usual arguments are read the short way."""
    if len(args) == 3 and isinstance(args[2], _AllreduceOptions) and type(args[1]) is list:
        kind, flags = sink.current.all_reduce_options(args[2])
        return _new(CallArgs, (tuple(args[1]), -1, 0, kind, (), flags))
    return _collective_args(args, kwargs)


def _collective_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    opts = _option(args, kwargs, 2)
    root = getattr(opts, "rootRank", -1)
    return CallArgs(_flat(args[1]), root, 0, reduce_op(opts) if hasattr(opts, "reduceOp") else 0, (), _flags(opts))


def _gather_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    """Outputs and inputs must both be the same on all ranks, and so must their number."""
    opts = _option(args, kwargs, 3)
    outputs, inputs = _flat(args[1]), _flat(args[2])
    reduce = reduce_op(opts) if hasattr(opts, "reduceOp") else 0
    return CallArgs(inputs or outputs, getattr(opts, "rootRank", -1), 0, reduce, (_shapes(outputs),), _flags(opts))


def _rooted_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    """gather and scatter: only the root has both lists, so the one that every rank has is compared."""
    opts = _option(args, kwargs, 3)
    outputs, inputs = _flat(args[1]), _flat(args[2])
    own = inputs if not outputs else outputs if not inputs else min(inputs, outputs, key=len)
    return CallArgs(own[:1], getattr(opts, "rootRank", -1), 0, 0, (), _flags(opts))


def _exchange_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    output, given = args[1], args[2]
    if isinstance(output, torch.Tensor):
        sizes = [tuple(each) if is_repeatable(each) else () for each in (*args[3:5], (), ())[:2]]
        return CallArgs((given,), splits=("single", *sizes, shape_of(output)), flags=_flags(args[-1]))
    return CallArgs(_flat(given), splits=("list", _shapes(given), _shapes(output)), flags=_flags(args[-1]))


def _barrier_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    return CallArgs(flags=_flags(_option(args, kwargs, 1)))


def _p2p_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    return CallArgs(_flat(args[1]), args[2], args[3] if len(args) > 3 else kwargs.get("tag", 0))


def _recv_any_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    return CallArgs(_flat(args[1]), -1, args[2])


def _shapes(tensors: Iterable[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(shape_of(tensor) for tensor in tensors)


# Per method of ProcessGroup: the op, and how its arguments are read.
METHODS: dict[str, tuple[str, Reader]] = {
    "allreduce": ("all_reduce", _all_reduce_args),
    "allreduce_coalesced": ("all_reduce", _collective_args),
    "broadcast": ("broadcast", _collective_args),
    "reduce": ("reduce", _collective_args),
    "allgather": ("all_gather", _gather_args),
    "allgather_coalesced": ("all_gather", _gather_args),
    "_allgather_base": ("all_gather", _gather_args),
    "all_gather_single": ("all_gather", _gather_args),
    "all_gather_single_coalesced": ("all_gather", _gather_args),
    "allgather_into_tensor_coalesced": ("all_gather", _gather_args),
    "gather": ("gather", _rooted_args),
    "gather_single": ("gather", _rooted_args),
    "gather_into_tensor": ("gather", _rooted_args),
    "scatter": ("scatter", _rooted_args),
    "reduce_scatter": ("reduce_scatter", _gather_args),
    "_reduce_scatter_base": ("reduce_scatter", _gather_args),
    "reduce_scatter_single": ("reduce_scatter", _gather_args),
    "reduce_scatter_single_coalesced": ("reduce_scatter", _gather_args),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", _gather_args),
    "alltoall": ("all_to_all", _exchange_args),
    "alltoall_base": ("all_to_all", _exchange_args),
    "all_to_all_single": ("all_to_all", _exchange_args),
    "barrier": ("barrier", _barrier_args),
    "monitored_barrier": ("barrier", lambda args, kwargs: CallArgs(flags=0)),
    "send": ("send", _p2p_args),
    "recv": ("recv", _p2p_args),
    "recv_anysource": ("recv", _recv_any_args),
}

"""What the methods of ProcessGroup are called with: each says what its op is about in its own way."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from rollcall.record.hooks.sink import Seen
from rollcall.record.ring_format import ASYNC, REDUCE_OPS
from rollcall.record.tensors import shape_of

Reader = Callable[[tuple[Any, ...], dict[str, Any]], Seen]
REDUCE = {name: number for number, name in enumerate(REDUCE_OPS)}


def _flat(value: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if len(value) == 1 and isinstance(value[0], torch.Tensor):  # as most ops have it
        return (value[0],)
    return tuple(tensor for each in value for tensor in _flat(each))


def _option(args: tuple[Any, ...], kwargs: dict[str, Any], place: int) -> Any:
    return kwargs.get("opts") if "opts" in kwargs else args[place] if len(args) > place else None


def _reduce_op(opts: Any) -> int:
    kind = opts.reduceOp.op  # ReduceOp wraps its kind
    known = _reduce_kinds.get(kind.value)
    if known is None:
        known = _reduce_kinds[kind.value] = REDUCE.get(kind.name, 0)
    return known


_reduce_kinds: dict[int, int] = {}  # its name takes long to ask for
# Looked up once; the second does as Seen(…) does, without looking its arguments up.
_AllreduceOptions, _new = dist.AllreduceOptions, tuple.__new__


def _flags(opts: Any) -> int:
    return ASYNC if getattr(opts, "asyncOp", True) else 0


def _all_reduce(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    """The op that most programs make most often: read without looking around."""
    if len(args) == 2 and isinstance(args[1], _AllreduceOptions):
        opts: Any = args[1]
        kind = _reduce_kinds.get(opts.reduceOp.op.value) or _reduce_op(opts)
        return _new(Seen, (tuple(args[0]), -1, 0, kind, (), ASYNC if opts.asyncOp else 0))
    return _collective(args, kwargs)


def _collective(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    opts = _option(args, kwargs, 1)
    root = getattr(opts, "rootRank", -1)
    return Seen(_flat(args[0]), root, 0, _reduce_op(opts) if hasattr(opts, "reduceOp") else 0, (), _flags(opts))


def _gathering(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    """Outputs, inputs: both count; their number, too."""
    opts = _option(args, kwargs, 2)
    outputs, inputs = _flat(args[0]), _flat(args[1])
    reduce = _reduce_op(opts) if hasattr(opts, "reduceOp") else 0
    return Seen(inputs or outputs, getattr(opts, "rootRank", -1), 0, reduce, (_shapes(outputs),), _flags(opts))


def _rooted(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    """gather and scatter: only the root has both sides, so only what each has alike is compared."""
    opts = _option(args, kwargs, 2)
    outputs, inputs = _flat(args[0]), _flat(args[1])
    own = inputs if not outputs else outputs if not inputs else min(inputs, outputs, key=len)
    return Seen(own[:1], getattr(opts, "rootRank", -1), 0, 0, (), _flags(opts))


def _exchanging(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    output, given = args[0], args[1]
    if isinstance(output, torch.Tensor):
        sizes = (list(args[2]) if len(args) > 2 else [], list(args[3]) if len(args) > 3 else [])
        return Seen((given,), splits=("single", *map(tuple, sizes), shape_of(output)), flags=_flags(args[-1]))
    return Seen(_flat(given), splits=("list", _shapes(given), _shapes(output)), flags=_flags(args[-1]))


def _barrier(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    return Seen(flags=_flags(_option(args, kwargs, 0)))


def _sending(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    return Seen(_flat(args[0]), args[1], args[2] if len(args) > 2 else kwargs.get("tag", 0))


def _receiving_from_any(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
    return Seen(_flat(args[0]), -1, args[1])


def _shapes(tensors: Iterable[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(shape_of(tensor) for tensor in tensors)


# Per method of ProcessGroup: the op, and how its arguments are read.
METHODS: dict[str, tuple[str, Reader]] = {
    "allreduce": ("all_reduce", _all_reduce),
    "allreduce_coalesced": ("all_reduce", _collective),
    "broadcast": ("broadcast", _collective),
    "reduce": ("reduce", _collective),
    "allgather": ("all_gather", _gathering),
    "allgather_coalesced": ("all_gather", _gathering),
    "_allgather_base": ("all_gather", _gathering),
    "all_gather_single": ("all_gather", _gathering),
    "all_gather_single_coalesced": ("all_gather", _gathering),
    "allgather_into_tensor_coalesced": ("all_gather", _gathering),
    "gather": ("gather", _rooted),
    "scatter": ("scatter", _rooted),
    "reduce_scatter": ("reduce_scatter", _gathering),
    "_reduce_scatter_base": ("reduce_scatter", _gathering),
    "reduce_scatter_single": ("reduce_scatter", _gathering),
    "reduce_scatter_single_coalesced": ("reduce_scatter", _gathering),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", _gathering),
    "alltoall": ("all_to_all", _exchanging),
    "alltoall_base": ("all_to_all", _exchanging),
    "all_to_all_single": ("all_to_all", _exchanging),
    "barrier": ("barrier", _barrier),
    "monitored_barrier": ("barrier", lambda args, kwargs: Seen(flags=0)),
    "send": ("send", _sending),
    "recv": ("recv", _sending),
    "recv_anysource": ("recv", _receiving_from_any),
}

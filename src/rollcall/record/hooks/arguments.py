"""Reads what the methods of ProcessGroup are called with: the group first, then arguments in the order of each."""

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import count, takewhile
from operator import index
from typing import Any, NamedTuple, TypeGuard

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


def number_of(value: Any) -> int:
    """A rank or a tag, in the way in which torch takes it: numpy's numbers are fine. Raises for what torch refuses."""
    number = index(value)
    if not -(2**31) <= number < 2**31:
        raise OverflowError(f"{number} is no rank or tag")
    return number


def numbers_of(values: Any) -> tuple[int, ...]:
    """Ranks or sizes that can be read without taking them from the program; none for what only torch may read."""
    return tuple(map(index, values)) if is_repeatable(values) else ()


def _flat(value: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if len(value) == 1 and isinstance(value[0], torch.Tensor):  # the usual case
        return (value[0],)
    return tuple(tensor for each in value for tensor in _flat(each))


def reduce_op(opts: Any) -> int:
    """Its number in the ring."""
    return _number(opts.reduceOp)


def _number(op: Any) -> int:
    kind = getattr(op, "op", op)  # ReduceOp wraps its kind
    known = _reduce_kinds.get(kind.value)
    if known is None:
        known = _reduce_kinds[kind.value] = REDUCE.get(kind.name, 0)
    return known


_reduce_kinds: dict[int, int] = {}  # kept, since asking for the name of a kind is slow
# Looked up once. The second makes a CallArgs without the cost of its constructor.
_AllreduceOptions, _new = dist.AllreduceOptions, tuple.__new__
_OPS = (dist.ReduceOp, dist.ReduceOp.RedOpType)
# By name of an argument: its place. What has no place here says how: an options object, or parts of it.
_PLACES: dict[str, int] = {
    **dict.fromkeys(("tensors", "tensor", "output", "outputs", "output_tensor", "output_tensors"), 1),
    **dict.fromkeys(("output_lists", "outputTensor"), 1),
    **dict.fromkeys(("input", "inputs", "input_tensor", "input_tensors", "input_list", "inputTensor"), 2),
    **{"dstRank": 2, "srcRank": 2, "tag": 3, "output_split_sizes": 3, "input_split_sizes": 4},
}


class _Settings(NamedTuple):
    """How an op is done. Torch's own defaults: ranks may give them, or leave them out."""

    root: int = -1
    reduce: int = 0
    flags: int = ASYNC


_PLAIN, _REDUCED, _ROOTED = _Settings(), _Settings(reduce=REDUCE["SUM"]), _Settings(root=0)
_REDUCED_TO_ROOT = _Settings(0, REDUCE["SUM"])


def in_order(places: Mapping[str, int], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments by place, with those that are given by name, up to the first that is missing."""
    if not kwargs:  # as torch's own functions call
        return args
    named = {places[name]: value for name, value in kwargs.items() if name in places}
    return args + tuple(named[place] for place in takewhile(named.__contains__, count(len(args))))


def _settings(given: tuple[Any, ...], kwargs: dict[str, Any], default: _Settings) -> _Settings:
    root, reduce, flags = default
    named = tuple(value for name, value in kwargs.items() if name not in _PLACES) if kwargs else ()
    for each in given + named:
        if isinstance(each, _OPS):
            reduce = _number(each)
        elif isinstance(each, int):
            root = number_of(each)
        else:  # options; or a timeout, which is not recorded
            root = getattr(each, "rootRank", root)
            reduce = reduce_op(each) if hasattr(each, "reduceOp") else reduce
            flags = flags if getattr(each, "asyncOp", True) else flags & ~ASYNC
    return _Settings(root, reduce, flags)


def _all_reduce_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    """The op that most programs call most often: the usual arguments are read the short way."""
    if len(args) == 3 and isinstance(args[2], _AllreduceOptions) and type(args[1]) is list:
        kind, flags = sink.current.all_reduce_options(args[2])
        return _new(CallArgs, (tuple(args[1]), -1, 0, kind, (), flags))
    return _read_all_reduce(args, kwargs)


def _collective_reader(default: _Settings) -> Reader:
    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
        _, tensors, *rest = in_order(_PLACES, args, kwargs)
        root, reduce, flags = _settings(tuple(rest), kwargs, default)
        return CallArgs(_flat(tensors), root, 0, reduce, (), flags)

    return read


_read_all_reduce = _collective_reader(_REDUCED)


def _gather_reader(default: _Settings) -> Reader:
    """Outputs and inputs must both be the same on all ranks, and so must their number."""

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
        _, outputs, inputs, *rest = in_order(_PLACES, args, kwargs)
        outputs, inputs = _flat(outputs), _flat(inputs)
        root, reduce, flags = _settings(tuple(rest), kwargs, default)
        return CallArgs(inputs or outputs, root, 0, reduce, (_shapes(outputs),), flags)

    return read


_read_gather, _read_scattered = _gather_reader(_PLAIN), _gather_reader(_REDUCED)


def _read_reduce_scatter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    """Each rank gets its part of the inputs: where these are of different sizes, so are the outputs of the ranks."""
    call = _read_scattered(args, kwargs)
    return call if len(set(_shapes(call.tensors))) < 2 else call._replace(splits=())


def _rooted_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    """gather and scatter: only the root has both lists, so the one that every rank has is compared."""
    _, outputs, inputs, *rest = in_order(_PLACES, args, kwargs)
    outputs, inputs = _flat(outputs), _flat(inputs)
    own = inputs if not outputs else outputs if not inputs else min(inputs, outputs, key=len)
    root, _, flags = _settings(tuple(rest), kwargs, _ROOTED)
    return CallArgs(own[:1], root, 0, 0, (), flags)


def _exchange_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    _, output, given, *rest = in_order(_PLACES, args, kwargs)
    if isinstance(output, torch.Tensor):
        sizes = map(numbers_of, (*rest[:2], (), ())[:2])
        flags = _settings(tuple(rest[2:]), kwargs, _PLAIN).flags
        return CallArgs((given,), splits=("single", *sizes, shape_of(output)), flags=flags)
    flags = _settings(tuple(rest), kwargs, _PLAIN).flags
    return CallArgs(_flat(given), splits=("list", _shapes(given), _shapes(output)), flags=flags)


def _barrier_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    return CallArgs(flags=_settings(args[1:], kwargs, _PLAIN).flags)


def _p2p_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    _, tensors, peer, tag = in_order(_PLACES, args, kwargs)
    return CallArgs(_flat(tensors), number_of(peer), number_of(tag))


def _recv_any_args(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArgs:
    return CallArgs(_flat(args[1]), -1, number_of(args[2]))


def _shapes(tensors: Iterable[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(shape_of(tensor) for tensor in tensors)


# Per method of ProcessGroup: the op, and how its arguments are read.
METHODS: dict[str, tuple[str, Reader]] = {
    "allreduce": ("all_reduce", _all_reduce_args),
    "allreduce_coalesced": ("all_reduce", _read_all_reduce),
    "broadcast": ("broadcast", _collective_reader(_ROOTED)),
    "reduce": ("reduce", _collective_reader(_REDUCED_TO_ROOT)),
    "allgather": ("all_gather", _read_gather),
    "allgather_coalesced": ("all_gather", _read_gather),
    "_allgather_base": ("all_gather", _read_gather),
    "all_gather_single": ("all_gather", _read_gather),
    "all_gather_single_coalesced": ("all_gather", _read_gather),
    "allgather_into_tensor_coalesced": ("all_gather", _read_gather),
    "gather": ("gather", _rooted_args),
    "gather_single": ("gather", _rooted_args),
    "gather_into_tensor": ("gather", _rooted_args),
    "scatter": ("scatter", _rooted_args),
    "reduce_scatter": ("reduce_scatter", _read_reduce_scatter),
    "_reduce_scatter_base": ("reduce_scatter", _read_reduce_scatter),
    "reduce_scatter_single": ("reduce_scatter", _read_reduce_scatter),
    "reduce_scatter_single_coalesced": ("reduce_scatter", _read_reduce_scatter),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", _read_reduce_scatter),
    "alltoall": ("all_to_all", _exchange_args),
    "alltoall_base": ("all_to_all", _exchange_args),
    "all_to_all_single": ("all_to_all", _exchange_args),
    "barrier": ("barrier", _barrier_args),
    "monitored_barrier": ("barrier", lambda args, kwargs: CallArgs(flags=0)),
    "send": ("send", _p2p_args),
    "recv": ("recv", _p2p_args),
    "recv_anysource": ("recv", _recv_any_args),
}

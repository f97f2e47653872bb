"""Ops with ranks that do not run. An op returns at once with a handle that is complete.

What this rank contributes in small tensors is noted, and what it receives is computed from what all ranks contributed
in an earlier pass. In the first pass, the others are assumed to contribute the same as this rank.
"""

import functools
import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]

from rollcall.compat.torch_groups import group_named, ranks_of
from rollcall.record.hooks.arguments import METHODS
from rollcall.record.ring_format import REDUCE_OPS
from rollcall.rehearse.collective_results import Data, Given, Key, Took, combine, pack
from rollcall.rehearse.rank.unsupported import Unsupported
from rollcall.rehearse.rank.values import is_followed, users_place

Table = dict[Key, dict[int, Given]]  # by rank of the group: what it contributed


class _Calling(threading.local):
    """The op that Python has called, whose reduce op cannot be read from the arguments of the op inside."""

    reduce: str | None = None  # None: C++ calls it, as DDP's reducer does


_calling = _Calling()


def note_reduce_ops() -> None:
    """Call this before the recorder puts its hooks around the same methods: these are then the outer ones."""
    for name in METHODS:
        if hasattr(dist.ProcessGroup, name):
            setattr(dist.ProcessGroup, name, _noting(getattr(dist.ProcessGroup, name), METHODS[name][1]))


def _noting(original: Any, read: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            reduce = REDUCE_OPS[read(args, kwargs).reduce]
        except Exception:  # arguments that we do not know: torch will say whether they are right
            reduce = ""
        with _called(reduce):
            return original(*args, **kwargs)

    return call


@contextmanager
def _called(reduce: str) -> Iterator[None]:
    before, _calling.reduce = _calling.reduce, reduce
    try:
        yield
    finally:
        _calling.reduce = before


@dataclass
class Exchange:
    """What one rank contributed and received, and what the others contribute, as far as that is known."""

    table: Table = field(default_factory=dict)
    gave: dict[Key, Given] = field(default_factory=dict)
    took: dict[Key, Took] = field(default_factory=dict)
    count_records: Callable[[], int] = lambda: 0  # of the ring: the number of the op that runs
    ops: int = 0  # between ranks, so far
    _counts: Counter[Any] = field(default_factory=Counter)

    def number(self, *channel: Any) -> int:
        self._counts[channel] += 1
        return self._counts[channel]

    def get(self, key: Key, given: Given, index: int, size: int) -> tuple[torch.Tensor, ...] | None:
        self.gave[key] = given
        result = result_for(self.table.get(key, {}), given, index, size)
        self._note(key, index, size, result)
        return result

    def receive(self, key: Key) -> tuple[torch.Tensor, ...] | None:
        result = message_from(self.table.get(key, {}))
        self._note(key, 1, 2, result)
        return result

    def _note(self, key: Key, index: int, size: int, result: tuple[torch.Tensor, ...] | None) -> None:
        self.took[key] = Took(index, size, digest(result), self.count_records(), users_place())


def result_for(known: dict[int, Given], given: Given, index: int, size: int) -> tuple[torch.Tensor, ...] | None:
    """A rank of which nothing is known is assumed to contribute what this rank does. So is a rank that made another op
    here: it took another branch in the last pass, or explain will report it."""
    others = {place: its for place, its in known.items() if its.op == given.op and place != index}
    return combine([others.get(place, given) for place in range(size)], index)


def message_from(known: dict[int, Given]) -> tuple[torch.Tensor, ...] | None:
    return combine([known[0]], 0) if 0 in known else None


def digest(tensors: tuple[torch.Tensor, ...] | None) -> str:
    if tensors is None:
        return ""
    return hashlib.sha1(repr([pack(each) for each in tensors]).encode()).hexdigest()


exchange = Exchange()


def count_ops() -> int:
    return exchange.ops


def is_called_by_ddp() -> bool:
    """Its C++ calls the op itself, and not by way of a function of torch.distributed."""
    return _calling.reduce is None


def use_exchange(made: Exchange) -> None:
    global exchange
    exchange = made


@dataclass(frozen=True)
class _Call:
    """An op, its group, the tensors that it reads and those that it writes."""

    op: str
    group: Any
    inputs: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    root: int = -1
    splits: tuple[int, ...] = ()
    tag: int = 0


def _first(lists: Any) -> Any:
    return lists[0] if lists else []


# How the arguments of each op of torch.ops.c10d are read.
_READERS: dict[str, Any] = {
    "allreduce_": lambda a: _Call("all_reduce", a[1], a[0], a[0]),
    "broadcast_": lambda a: _Call("broadcast", a[1], a[0], a[0], root=a[2]),
    "reduce_": lambda a: _Call("reduce", a[1], a[0], a[0], root=a[3]),
    "allgather_": lambda a: _Call("all_gather", a[2], a[1], _first(a[0])),
    "_allgather_base_": lambda a: _Call("all_gather", a[2], [a[1]], [a[0]]),
    "gather_": lambda a: _Call("gather", a[2], a[1], _first(a[0]), root=a[3]),
    "scatter_": lambda a: _Call("scatter", a[2], _first(a[1]), a[0], root=a[3]),
    "reduce_scatter_": lambda a: _Call("reduce_scatter", a[2], _first(a[1]), a[0]),
    "_reduce_scatter_base_": lambda a: _Call("reduce_scatter", a[2], [a[1]], [a[0]]),
    "alltoall_": lambda a: _Call("all_to_all", a[2], a[1], a[0]),
    "alltoall_base_": lambda a: _Call("all_to_all_single", a[2], [a[1]], [a[0]], splits=tuple(a[4])),
    "send": lambda a: _Call("send", a[1], a[0], [], root=a[2], tag=a[3]),
    "recv_": lambda a: _Call("recv", a[1], [], a[0], root=a[2], tag=a[3]),
    "barrier": lambda a: _Call("barrier", a[1], [], []),
    "monitored_barrier_": lambda a: _Call("barrier", a[1], [], []),
    # Several ops in one call: their values are not computed.
    "allreduce_coalesced_": lambda a: _Call("", a[1], [], a[0]),
    "allgather_coalesced_": lambda a: _Call("", a[2], [], [each for its in a[0] for each in its]),
    "allgather_into_tensor_coalesced_": lambda a: _Call("", a[2], [], a[0]),
    "reduce_scatter_tensor_coalesced_": lambda a: _Call("", a[2], [], a[0]),
}
_NAMES = {"recv_any_source_": "a receive from any rank, where chance decides which one it is,"}
# The same of torch.ops._c10d_functional; their result is a new tensor.
_FUNCTIONAL: dict[str, Any] = {
    "all_reduce": lambda a: ("all_reduce", str(a[1]).upper(), a[2], -1, ()),
    "all_reduce_": lambda a: ("all_reduce", str(a[1]).upper(), a[2], -1, ()),
    "all_gather_into_tensor": lambda a: ("all_gather", "", a[2], -1, ()),
    "reduce_scatter_tensor": lambda a: ("reduce_scatter", str(a[1]).upper(), a[3], -1, ()),
    "all_to_all_single": lambda a: ("all_to_all_single", "", a[3], -1, tuple(a[2])),
    "broadcast": lambda a: ("broadcast", "", a[2], a[1], ()),
    "broadcast_": lambda a: ("broadcast", "", a[2], a[1], ()),
}


def run(func: Any, args: tuple[Any, ...], data: Any) -> Any:
    """An op of torch.ops.c10d. `data` knows and sets what is in tensors."""
    name = func._schema.name.removeprefix("c10d::")
    reader = _READERS.get(name)
    if reader is None:
        raise Unsupported(f"{_NAMES.get(name, name)} cannot be rehearsed", "name the rank, or leave this part out")
    call: _Call = reader(args)
    exchange.ops += 1
    if is_called_by_ddp():
        _finish_own(call, data)
    else:
        _finish(call, _result(call, data), data)
    work = _complete_work(call.outputs).boxed()
    returns = len(func._schema.returns)
    return (args[0], work) if returns == 2 else work if returns == 1 else None


def run_functional(name: str, args: tuple[Any, ...], results: Sequence[torch.Tensor], data: Any) -> None:
    """Fills in what is known of the result of a functional op that has run on shapes alone."""
    reader = _FUNCTIONAL.get(name)
    if reader is None or not isinstance(args[0], torch.Tensor):
        return
    exchange.ops += 1
    op, reduce, group, root, splits = reader(args)
    call = _Call(op, group_named(group), [args[0]], results, root, splits)
    with _called(reduce):
        _finish(call, _result(call, data), data)


def _complete_work(tensors: Sequence[torch.Tensor]) -> Any:
    """DDP takes the tensors from the future of the handle."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(list(tensors))
    return _create_work_from_future(future)


def _result(call: _Call, data: Any) -> tuple[torch.Tensor, ...] | None:
    if call.op in ("", "barrier"):
        return None
    group = call.group if isinstance(call.group, dist.ProcessGroup) else dist.ProcessGroup.unbox(call.group)
    name, index, size = str(group.group_name), group.rank(), group.size()
    if call.op in ("send", "recv"):
        return _message(call, name, index, data)
    key = Key(f"{name} {_members(group)}", exchange.number(name))
    if not _is_followed(call.inputs) and not _is_followed(call.outputs):
        return None
    # The content of a tensor that only receives does not matter.
    gives = call.op not in ("broadcast", "scatter") or call.root == index
    given = _known(call.inputs, data) if gives else None
    return exchange.get(key, Given(call.op, given, _calling.reduce or "", call.root, call.splits), index, size)


def _message(call: _Call, group: str, index: int, data: Any) -> tuple[torch.Tensor, ...] | None:
    ends = (index, call.root) if call.op == "send" else (call.root, index)
    key = Key(group, exchange.number(group, *ends, call.tag), *ends, call.tag)
    if call.op == "recv":
        return exchange.receive(key)
    if _is_followed(call.inputs):
        exchange.gave[key] = Given("message", _known(call.inputs, data), root=0)
    return None


def _members(group: Any) -> str:
    return hashlib.sha1(repr(ranks_of(group)).encode()).hexdigest()[:8]


def _is_followed(tensors: Sequence[torch.Tensor]) -> bool:
    size_bytes = sum(each.numel() * each.element_size() for each in tensors)
    return is_followed(size_bytes, tensors[0].dtype if tensors else torch.uint8)


def _known(tensors: Sequence[torch.Tensor], data: Any) -> tuple[Data, ...] | None:
    found = [data.get(each) for each in tensors]
    return None if any(each is None for each in found) else tuple(pack(each) for each in found)


def _finish_own(call: _Call, data: Any) -> None:
    """DDP has called the op, in C++: to agree on its buckets, which are the same on all ranks, or to average gradients.
    Gradients on the CPU stay those of this rank, so results that depend on them are not those of real ranks."""
    for output in call.outputs:
        if output.dtype.is_floating_point:
            data.forget(output, is_own=True)


def _finish(call: _Call, result: tuple[torch.Tensor, ...] | None, data: Any) -> None:
    """Write known results into the outputs. Other outputs are unknown from now on."""
    if call.op in ("send", "barrier") or (call.op in ("gather", "reduce") and result == ()):
        return
    outputs = list(call.outputs)
    if result is not None and len(outputs) == 1 and len(result) > 1:  # all_gather into one tensor
        result = (torch.cat([each.flatten() for each in result]),)
    for number, output in enumerate(outputs):
        part = result[number] if result is not None and number < len(result) else None
        if part is not None and call.op == "all_gather" and part.dim() == output.dim() == 1:
            part = _resized(part, output.numel())
        if part is not None and part.numel() == output.numel() and part.dtype == output.dtype:
            data.set(output, part.reshape(output.shape))
        else:
            data.forget(output, is_own=any(output is each for each in call.inputs))


def _resized(part: torch.Tensor, size: int) -> torch.Tensor:
    """Pickled objects are sent in tensors as long as the longest, which a rank may not have known in the last pass."""
    return torch.nn.functional.pad(part, (0, size - part.numel())) if part.numel() < size else part[:size]

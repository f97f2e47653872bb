"""Functional collectives, which DTensor and compiled programs use: ops of torch, called by their objects.

The function that an op object calls is replaced, not the object: the compiler knows ops by their identity.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from rollcall.compat import torch_groups
from rollcall.compat.patch import exists
from rollcall.record.hooks import sink
from rollcall.record.hooks.arguments import REDUCE, in_order, number_of, numbers_of
from rollcall.record.hooks.patching import Hook, leave_to_program, seek, wrap
from rollcall.record.hooks.sink import NO_RECORD, CallArgs
from rollcall.record.ring_format import ASYNC, OP, WAITED
from rollcall.record.tensors import shape_of
from rollcall.torch_version import OLDEST, is_older

# Per op: its name in the ring, and where its arguments are: reduce op or root, and the group. -1: it has none.
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
    "isend": ("send", 1, 3),
    "irecv": ("recv", 1, 3),
}
# What came with a later version of torch than the oldest. An older one has nothing there that could be recorded.
_SINCE = {"isend": (2, 13), "irecv": (2, 13), "batch_p2p_ops": (2, 13)}
_WAITED_ON_USE = ASYNC | WAITED  # the program waits for the result when it uses it
_UNREADABLE = CallArgs(flags=_WAITED_ON_USE)
_REGISTER = "torch.jit._builtins:_register_builtin"
_SPACES = ("_c10d_functional", "_c10d_functional_autograd")
_pending: dict[int, int] = {}  # by the address of a result: the mark of the op that fills it


def install_all() -> None:
    for space in _SPACES:
        for name, (op, option, group) in _OPS.items():
            install_op(space, name, _op_hook(op, option, group, functools.partial(_by_place, space, name)))
    install_op("_c10d_functional", "batch_p2p_ops", Hook("batch_p2p_ops", _before_batch, _after_batch, _failed_batch))
    install_op("_c10d_functional", "wait_tensor", Hook("wait_tensor", _before_wait, _after_wait, _failed_wait))


def install_op(space: str, name: str, hook: Hook) -> None:
    packet = getattr(getattr(torch.ops, space), name, None)  # not every torch has all
    if packet is not None or not is_older(torch.__version__, _SINCE.get(name, OLDEST)):
        seek(hook.name, packet is not None)
    if packet is not None:
        for called in (packet, packet.default):
            called._op = wrap(called._op, hook, f"{space}.{name}")
        if exists(_REGISTER):  # a scripted function calls the op itself: the function that Python calls has its name
            torch.jit._builtins._register_builtin(packet._op, f"{space}::{name}")


def _by_place(space: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of an op in the order of its schema: a program may give them by name."""
    schema = getattr(getattr(torch.ops, space), name).default._schema
    return in_order({each.name: place for place, each in enumerate(schema.arguments)}, args, kwargs)


def _op_hook(name: str, option: int, place: int, by_place: Callable[..., tuple[Any, ...]]) -> Hook:
    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        if kwargs:
            args = by_place(args, kwargs)
        # It is recorded already, or the compiler traces it and nothing is sent.
        if sink.current.is_in_op() or len(args) <= place or not is_real(args[0]):
            return None
        group = find_group(args[place])
        try:
            call = _call_args(name, args, option)
        except Exception as error:  # arguments that we do not know: torch will say whether they are right
            leave_to_program(error)
            call = _UNREADABLE
        mark = NO_RECORD if group is None else sink.current.enter(OP[name], group, call)
        if mark < 0:
            return None
        sink.current.set_in_op(True)
        return mark

    def after(mark: int, result: Any) -> None:
        sink.current.set_in_op(False)
        sink.current.issued(mark)
        if not is_real(result):  # a mode of the program, such as FakeTensorMode, has taken the call: nothing was sent
            sink.current.completed(mark)
            return
        for tensor in _flat(result):
            _follow(tensor, mark)

    return Hook(f"functional {name}", before, after, _failed_op)


def find_group(name: Any) -> Any:
    """The group of this name; None if there is none: torch says so."""
    try:
        group = torch_groups.group_named(name)
    except (RuntimeError, ValueError):
        return None
    return group if isinstance(group, dist.ProcessGroup) else None


def _follow(tensor: torch.Tensor, mark: int) -> None:
    """The op is waited for by its result."""
    address = _address(tensor)
    if (older := _pending.pop(address, None)) is not None:
        sink.current.dropped(older)
    _pending[address] = mark


def _before_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int] | None:
    """Sends and receives that begin together."""
    args = _by_place("_c10d_functional", "batch_p2p_ops", args, kwargs)
    if len(args) != 5:  # torch refuses it
        return None
    names, peers, tags, tensors, name = args
    group = find_group(name)
    if sink.current.is_in_op() or not is_real(tensors) or group is None:
        return None
    try:
        calls = [
            (OP[op.removeprefix("i")], CallArgs((tensor,), number_of(peer), number_of(tag), flags=_WAITED_ON_USE))
            for op, peer, tag, tensor in zip(names, peers, tags, tensors, strict=True)
        ]
    except Exception as error:  # torch refuses lists of different lengths, and names that it does not know
        leave_to_program(error)
        return None
    marks = [sink.current.enter(op, group, call) for op, call in calls]
    if min(marks, default=-1) < 0:
        return None
    sink.current.set_in_op(True)
    return marks


def _after_batch(marks: list[int], results: Any) -> None:
    sink.current.set_in_op(False)
    if not is_real(results):
        sink.current.completed(*marks)
        return
    for mark, tensor in zip(marks, results, strict=True):
        sink.current.issued(mark)
        _follow(tensor, mark)


def _failed_batch(marks: list[int]) -> None:
    sink.current.set_in_op(False)
    for mark in marks:
        sink.current.failed(mark)


def _failed_op(mark: int) -> None:
    sink.current.set_in_op(False)
    sink.current.failed(mark)


def _call_args(name: str, args: tuple[Any, ...], option: int) -> CallArgs:
    tensors = _flat(args[0])
    if name == "broadcast":
        return CallArgs(tensors, number_of(args[option]), flags=_WAITED_ON_USE)
    if name in ("send", "recv"):
        return CallArgs(tensors, number_of(args[option]), number_of(args[option + 1]), flags=_WAITED_ON_USE)
    if name == "all_to_all":
        received, sent = numbers_of(args[1]), numbers_of(args[2])
        shape = (sum(received), *shape_of(tensors[0])[1:]) if tensors else ()
        return CallArgs(tensors, splits=("single", received, sent, shape), flags=_WAITED_ON_USE)
    reduce = REDUCE.get(str(args[option]).upper(), 0) if option > 0 else 0
    return CallArgs(tensors, reduce=reduce, flags=_WAITED_ON_USE)


def is_real(value: Any) -> bool:
    """Not a tensor of the compiler, which has no data and a class of its own."""
    if not isinstance(value, torch.Tensor | list | tuple):  # torch refuses it
        return False
    return all(_is_pretended(t) or (type(t) is torch.Tensor and not t.is_meta) for t in _flat(value))


_is_pretended: Callable[[Any], bool] = lambda tensor: False  # noqa: E731  (it is replaced)


def counts_as_real(is_pretended: Callable[[Any], bool]) -> None:
    """In a rehearsal, the program's own tensors have no data."""
    global _is_pretended
    _is_pretended = is_pretended


def _flat(value: Any) -> tuple[torch.Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def _address(tensor: torch.Tensor) -> int:
    """0 of a tensor that is not one block of memory, such as a sparse one. One without data has that of its storage."""
    try:
        if _is_pretended(tensor):
            return int(tensor.untyped_storage()._cdata)
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def _before_wait(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    tensor = args[0] if args else kwargs.get("tensor")
    if not _pending or not isinstance(tensor, torch.Tensor) or not is_real(tensor):
        return None
    mark = _pending.pop(_address(tensor), None)
    if mark is not None:
        sink.current.waiting(mark)
    return mark


def _after_wait(mark: int, _: Any) -> None:
    sink.current.completed(mark)


def _failed_wait(mark: int) -> None:
    sink.current.failed(mark)

"""The Python recorder's view of the all_reduces that DDP's reducer starts in C++. The C++ recorder has one of its own.

torch 2.15 calls hooks around every op of a group. For older versions there is a kernel at the autograd key, which every
op passes before it reaches its backend; in a rehearsal, too, where no op reaches one.
"""

import threading
from functools import partial
from typing import Any

import torch
from torch.autograd import Variable

from rollcall.compat.patch import exists
from rollcall.compat.torch_groups import group_named
from rollcall.record.hooks import sink
from rollcall.record.hooks.arguments import REDUCE
from rollcall.record.hooks.patching import Hook, callback, guarded, wrap
from rollcall.record.hooks.sink import CallArgs
from rollcall.record.ring_format import ASYNC, BUCKET, OP

NAME = "DDP's all_reduce"
_HOOK_USES = "torch.distributed:ProcessGroup.register_pre_hook"  # has no private name
_KERNEL_USES = ("torch:ops.c10d.allreduce_.default.redispatch", "torch:_C._after_autograd_keyset")
_HOOK_ID = 0x726F6C6C63616C6C  # "rollcall": other users of the hooks have other numbers
_KEYS = ("AutogradCPU", "AutogradCUDA")
_libraries: list[Any] = []  # kept alive: its kernels go with it
_marks: list[int] = []  # of the backward that runs; there is one at a time, since it holds its thread
_last_bucket = 0  # its position in the backward before


class _Started(threading.local):
    """The all_reduce that is between its two hooks, which run in the thread that starts it."""

    mark: int | None = None


_started = _Started()


def is_possible() -> bool:
    """Whether this torch has what is needed. A kernel stands between the program and its backend: it must not fail."""
    return exists(_HOOK_USES) or all(map(exists, _KERNEL_USES))


def watch(group: Any, is_rehearsed: bool = False) -> None:
    """From now on, the all_reduces of this group are seen; by the kernel, those of all groups."""
    if exists(_HOOK_USES) and not is_rehearsed:
        before = partial(_before_hooked, group.group_name)  # not the group, which would refer to itself
        group.register_pre_hook(_HOOK_ID, callback(Hook(NAME, before), "ProcessGroup.pre_hook"))
        group.register_post_hook(_HOOK_ID, callback(Hook(NAME, _after_hooked), "ProcessGroup.post_hook"))
    elif not _libraries:
        _install_kernel()


def is_timed(bucket: int) -> bool:
    """Whether an event tells when the GPU came to this bucket. A backward has dozens of buckets, and each event takes
    some of the GPU's time: the first and the last tell how late the GPU is. It is the same choice on all ranks."""
    return bucket in (0, _last_bucket)


def fail() -> None:
    """The backward has raised."""
    for mark in _marks:
        sink.current.failed(mark)
    _marks.clear()


def _before_hooked(group: str, args: tuple[Any, ...], _: dict[str, Any]) -> None:
    op = args[0]
    is_buckets = op.name.name == "ALLREDUCE" and not sink.current.is_in_op()
    _started.mark = _enter(op.input_tensors, group_named(group)) if is_buckets else None


def _after_hooked(*_: Any) -> None:
    mark, _started.mark = _started.mark, None
    if mark is not None:
        _after(mark, None)


def _install_kernel() -> None:
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    kernel = wrap(_redispatch, Hook(NAME, _before, _after), "c10d.allreduce_")
    for key in _KEYS:
        library.impl("allreduce_", kernel, key, with_keyset=True)  # type: ignore[no-untyped-call]


def _redispatch(keys: Any, *args: Any) -> Any:
    return torch.ops.c10d.allreduce_.default.redispatch(keys & torch._C._after_autograd_keyset, *args)


def _before(args: tuple[Any, ...], _: dict[str, Any]) -> int | None:
    if sink.current.is_in_op():  # called by Python, and recorded there
        return None
    return _enter(args[1], torch.distributed.ProcessGroup.unbox(args[2]))


def _enter(tensors: list[torch.Tensor], group: Any) -> int | None:
    splits = ("bucket", len(_marks))
    call = CallArgs(tuple(tensors), reduce=REDUCE["SUM"], splits=splits, flags=ASYNC | BUCKET)
    mark = sink.current.enter(OP["all_reduce"], group, call)
    return mark if mark >= 0 else None


def _after(mark: int, _: Any) -> None:
    sink.current.issued(mark)
    if not _marks:
        try:
            _queue(_before_reducer_waits)
        except RuntimeError:  # not in a backward: there is no callback at its end
            return
    _marks.append(mark)


def _before_reducer_waits() -> None:
    """Callbacks run at the end of backward, in the order in which they were queued. This one runs before the reducer's
    own, which waits for all buckets; the callback that it queues runs after that."""
    global _last_bucket
    _last_bucket = len(_marks) - 1
    for mark in _marks:
        sink.current.waiting(mark)
    _queue(_after_reducer_waited)


def _after_reducer_waited() -> None:
    if _marks:
        sink.current.completed(*_marks)
    _marks.clear()


def _queue(body: Any) -> None:
    Variable._execution_engine.queue_callback(lambda: guarded(NAME, body))

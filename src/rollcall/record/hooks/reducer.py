"""The Python recorder's view of the all_reduces that DDP's reducer starts in C++: a kernel at the autograd key, which
every op passes before it reaches its backend. The C++ recorder has a kernel of its own."""

from typing import Any

import torch
from torch.autograd import Variable

from rollcall.record.hooks import sink
from rollcall.record.hooks.arguments import REDUCE
from rollcall.record.hooks.patching import Hook, guarded, wrap
from rollcall.record.hooks.sink import CallArgs
from rollcall.record.ring_format import ASYNC, BUCKET, OP

_KEYS = ("AutogradCPU", "AutogradCUDA")
_NAME = "DDP's all_reduce"
_libraries: list[Any] = []  # kept alive: its kernels go with it
_marks: list[int] = []  # of the backward that runs; there is one at a time, since it holds its thread


def watch() -> None:
    """From now on, every all_reduce passes our kernel."""
    if _libraries:
        return
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    kernel = wrap(_redispatch, Hook(_NAME, _before, _after), "c10d.allreduce_")
    for key in _KEYS:
        library.impl("allreduce_", kernel, key, with_keyset=True)  # type: ignore[no-untyped-call]


def fail() -> None:
    """The backward has raised."""
    for mark in _marks:
        sink.current.failed(mark)
    _marks.clear()


def _redispatch(keys: Any, *args: Any) -> Any:
    return torch.ops.c10d.allreduce_.default.redispatch(keys & torch._C._after_autograd_keyset, *args)


def _before(args: tuple[Any, ...], _: dict[str, Any]) -> int | None:
    if sink.current.is_in_op():  # called by Python, and recorded there
        return None
    tensors, group = args[1], torch.distributed.ProcessGroup.unbox(args[2])
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
    for mark in _marks:
        sink.current.waiting(mark)
    _queue(_after_reducer_waited)


def _after_reducer_waited() -> None:
    if _marks:
        sink.current.completed(*_marks)
    _marks.clear()


def _queue(body: Any) -> None:
    Variable._execution_engine.queue_callback(lambda: guarded(_NAME, body))

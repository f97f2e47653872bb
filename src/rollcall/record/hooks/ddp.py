"""DDP: the making of a module, every forward, and the all-reduces that its reducer starts in C++.

The reducer is seen by a kernel of ours at the autograd key, which every op passes before it gets to its backend. It is
put up with the first DDP module only: programs without one do not pay for it.
"""

import weakref
from typing import Any

import torch
from torch.autograd import Variable
from torch.compiler import is_compiling
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from rollcall.record.cpp import pen
from rollcall.record.hooks.arguments import REDUCE
from rollcall.record.hooks.patching import during, replace
from rollcall.record.hooks.process_group import inside
from rollcall.record.hooks.sink import NOBODY, PHASE, Seen, Told
from rollcall.record.ring_format import ASYNC, BUCKET, OP
from rollcall.record.tensors import shape_of

_KEYS = ("AutogradCPU", "AutogradCUDA")
_BUCKET = ASYNC | BUCKET


def put_up() -> None:
    replace(DistributedDataParallel, "__init__", _wrapped)
    replace(DistributedDataParallel, "forward", _forward)


def _wrapped(original: Any) -> Any:
    """A module becomes a DDP module: all ranks must have the same parameters in the same order."""

    def init(ddp: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        _watch()
        parameters = tuple((n, shape_of(p), str(p.dtype)) for n, p in module.named_parameters() if p.requires_grad)
        with during("ddp", Seen(splits=parameters, flags=0)):
            original(ddp, module, *args, **kwargs)

    return init


def _watch() -> None:
    """From the first DDP module on: its reducer, and the parts of a step."""
    if pen is None:
        _Reducer.watch()
    else:
        pen.watch_reducer(_count)
    if not _marks:
        _marks.append({})
        replace(torch.autograd, "backward", _backward)
        register_optimizer_step_pre_hook(_step_begins if pen is None else pen.step_begins)
        register_optimizer_step_post_hook(_step_ends if pen is None else pen.step_ends)


_marks: list[dict[int, int]] = []  # by the id of an optimizer, that of its step


def _step_begins(optimizer: Any, *_: Any) -> None:
    _marks[0][id(optimizer)] = _begin_phase("step")


def _step_ends(optimizer: Any, *_: Any) -> None:
    _end_phase(_marks[0].pop(id(optimizer), NOBODY))


def _forward(original: Any) -> Any:
    def forward(ddp: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():  # torch.compile looks into this, and would warn that it cannot look into the pen
            return original(ddp, *args, **kwargs)
        mark = _forward_begins(ddp)
        try:
            return original(ddp, *args, **kwargs)
        finally:
            _end_phase(mark)

    return forward


def _begin_forward(ddp: Any) -> int:
    return _begin("forward", OP["ddp_forward"], _expected(ddp))


def _expected(ddp: Any) -> int:
    """How many gradients the reducer will average after this forward: 0 where it will not, or where others do it."""
    if not (ddp.require_backward_grad_sync and torch.is_grad_enabled()) or ddp._comm_hooks:
        return 0
    counted = _gradients.get(ddp)
    if counted is None:
        counted = _gradients[ddp] = _count(ddp)
    return counted


def _count(ddp: Any) -> int:
    return sum(p.numel() for p in ddp._module_parameters if p.requires_grad)


_gradients: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


class _Reducer:
    """The all-reduces of one backward, which end before it does."""

    _library: "torch.library.Library | None" = None
    _marks: list[int] = []  # noqa: RUF012  (one reducer runs at a time: backward holds the thread)

    @classmethod
    def watch(cls) -> None:
        if cls._library is not None:
            return
        cls._library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        for key in _KEYS:
            cls._library.impl("allreduce_", cls._all_reduce, key, with_keyset=True)  # type: ignore[no-untyped-call]

    @classmethod
    def _all_reduce(cls, keys: Any, tensors: Any, group: Any, reduce: Any, *rest: Any) -> Any:
        op = torch.ops.c10d.allreduce_.default
        below = keys & torch._C._after_autograd_keyset
        if inside.op:  # asked for by Python, and recorded there
            return op.redispatch(below, tensors, group, reduce, *rest)
        seen = Seen(tuple(tensors), reduce=REDUCE["SUM"], splits=("bucket", len(cls._marks)), flags=_BUCKET)
        mark = Told.listener.enter(OP["all_reduce"], torch.distributed.ProcessGroup.unbox(group), seen)
        result = op.redispatch(below, tensors, group, reduce, *rest)
        Told.listener.issued(mark)
        if not cls._marks:
            cls._follow()
        cls._marks.append(mark)
        return result

    @classmethod
    def fail(cls) -> None:
        """The backward that they were a part of has failed."""
        for mark in cls._marks:
            Told.listener.failed(mark)
        cls._marks.clear()

    @classmethod
    def _follow(cls) -> None:
        """Callbacks run at the end of backward, in their order. Ours comes before the reducer's own, which waits for
        all buckets; what ours adds comes after it."""

        def before() -> None:
            for mark in cls._marks:
                Told.listener.waiting(mark)
            Variable._execution_engine.queue_callback(after)

        def after() -> None:
            if cls._marks:
                Told.listener.completed(*cls._marks)
            cls._marks.clear()

        try:
            Variable._execution_engine.queue_callback(before)
        except RuntimeError:  # not in a backward: nobody tells us when it ends
            cls._marks.clear()


def _backward(original: Any) -> Any:
    def backward(*args: Any, **kwargs: Any) -> Any:
        mark = _begin_phase("backward")
        try:
            return original(*args, **kwargs)
        except BaseException:
            _fail_buckets()
            raise
        finally:
            _end_phase(mark)

    return backward


def _begin(name: str, op: int = PHASE, expected: int = 0) -> int:
    return Told.listener.begin_phase(name, op, expected)


def _end(mark: int) -> None:
    Told.listener.end_phase(mark)


# The pen needs no listener: it knows by itself whether it is to write, and every look-up counts where caches are cold.
_forward_begins = _begin_forward if pen is None else pen.forward_begins
_begin_phase = _begin if pen is None else pen.begin_phase
_end_phase = _end if pen is None else pen.end_phase
_fail_buckets = _Reducer.fail if pen is None else pen.fail_buckets

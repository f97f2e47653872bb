"""DDP: the construction of a module, every forward, backward and optimizer step, and (by the sink) the all_reduces that
its reducer starts in C++. All but the first two hooks come with the first DDP module: other programs do not pay."""

from typing import Any

import torch
from torch.compiler import is_compiling
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from rollcall.record.hooks import sink
from rollcall.record.hooks.patching import Hook, callback, install
from rollcall.record.hooks.process_group import enter
from rollcall.record.hooks.sink import CallArgs, this_thread
from rollcall.record.tensors import shape_of

_has_step_hooks = False


def install_all() -> None:
    install(DistributedDataParallel, "__init__", Hook("DistributedDataParallel", _before_init, _complete, _fail))
    own_check = "_check_global_requires_backward_grad_sync"
    install(DistributedDataParallel, own_check, Hook("join", _before_own_check, _after_own_check, _after_own_check))
    # torch.compile traces forward, and would warn that it cannot trace the C++ recorder.
    install(DistributedDataParallel, "forward", Hook("forward", _before_forward, _end, _end), unless=is_compiling)


def _before_init(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """All ranks must have the same parameters in the same order."""
    module = args[1] if len(args) > 1 else kwargs["module"]
    sink.current.watch_reducer(_count_gradients)
    _install_step_hooks()
    parameters = tuple((n, shape_of(p), str(p.dtype)) for n, p in module.named_parameters() if p.requires_grad)
    return enter("ddp", CallArgs(splits=parameters, flags=0))


def _before_own_check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """With join(), DDP itself forgets the handle of this all_reduce, except on ranks that have no inputs left."""
    this_thread.forgets_handles = not (kwargs.get("is_joined_rank") or any(args[1:]))
    return this_thread.forgets_handles or None


def _after_own_check(*_: Any) -> None:
    this_thread.forgets_handles = False


def _complete(mark: int, _: Any) -> None:
    sink.current.completed(mark)


def _fail(mark: int) -> None:
    sink.current.failed(mark)


def _count_gradients(ddp: Any) -> int:
    return sum(p.numel() for p in ddp._module_parameters if p.requires_grad)


def _install_step_hooks() -> None:
    global _has_step_hooks
    if not _has_step_hooks:
        _has_step_hooks = True
        install(torch.autograd, "backward", Hook("backward", _before_backward, _end, _failed_backward))
        register_optimizer_step_pre_hook(callback(Hook("step", _before_step), "optimizer.step.pre_hook"))
        register_optimizer_step_post_hook(callback(Hook("step", _after_step), "optimizer.step.post_hook"))


def _before_forward(args: tuple[Any, ...], _: dict[str, Any]) -> int:
    return sink.current.begin_forward(args[0])


def _before_backward(*_: Any) -> int:
    return sink.current.begin_phase("backward")


def _end(mark: int, *_: Any) -> None:
    sink.current.end_phase(mark)


def _failed_backward(mark: int) -> None:
    sink.current.fail_buckets()
    sink.current.end_phase(mark)


def _before_step(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    sink.current.begin_step(args[0])


def _after_step(args: tuple[Any, ...], _: dict[str, Any]) -> None:
    sink.current.end_step(args[0])

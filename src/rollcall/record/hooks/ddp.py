"""DDP: the construction of a module, every forward, backward and optimizer step, and (by the sink) the all_reduces that
its reducer starts in C++. All but the first two hooks come with the first DDP module: other programs do not pay."""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer

from rollcall.compat.patch import exists
from rollcall.compat.private_names.recorder.record_ddp import FORWARD_USES
from rollcall.compat.torch_groups import name_of
from rollcall.record.hooks import reducer, sink
from rollcall.record.hooks.patching import Hook, callback, install, seek
from rollcall.record.hooks.process_group import enter
from rollcall.record.hooks.sink import WORLD, CallArgs, this_thread
from rollcall.record.tensors import shape_of

_Construction = tuple[int, DistributedDataParallel]  # of a module: its mark, and the module
_has_step_hooks = False


def install_all() -> None:
    install(DistributedDataParallel, "__init__", Hook("DistributedDataParallel", _before_init, _complete, _fail))
    own_check = "_check_global_requires_backward_grad_sync"
    install(DistributedDataParallel, own_check, Hook("join", _before_own_check, _after_own_check, _after_own_check))
    if all(map(exists, FORWARD_USES)):
        install(DistributedDataParallel, "forward", Hook("forward", _before_forward, _end, _end))
    else:
        seek("forward", False)
    seek("backward", hasattr(torch.autograd, "backward"))
    seek("step", hasattr(optimizer, "register_optimizer_step_pre_hook"))
    seek(reducer.NAME, reducer.is_possible())


def _before_init(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Construction | None:
    """All ranks of its group must have the same parameters in the same order."""
    module = args[1] if len(args) > 1 else kwargs.get("module")
    if not (args and isinstance(module, torch.nn.Module)):  # torch refuses it
        return None
    _install_step_hooks()
    parameters = tuple((n, shape_of(p), str(p.dtype)) for n, p in module.named_parameters() if p.requires_grad)
    mark = enter("ddp", CallArgs(splits=parameters, flags=0), _group(args, kwargs))
    return None if mark is None else (mark, args[0])


def _group(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The group that the module is given; ranks of another group may wrap another model."""
    mesh = kwargs.get("device_mesh")
    if mesh is not None:
        return mesh.get_group(mesh_dim=0)
    given = args[_GROUP_PLACE] if len(args) > _GROUP_PLACE else kwargs.get("process_group")
    return WORLD if given is None else given


_GROUP_PLACE = 7  # of DDP's arguments


def _before_own_check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool | None:
    """With join(), DDP itself forgets the handle of this all_reduce, except on ranks that have no inputs left."""
    this_thread.forgets_handles = not (kwargs.get("is_joined_rank") or any(args[1:]))
    return this_thread.forgets_handles or None


def _after_own_check(*_: Any) -> None:
    this_thread.forgets_handles = False


def _complete(state: _Construction, _: Any) -> None:
    mark, ddp = state
    sink.current.completed(mark)
    name = name_of(ddp.process_group)
    if name and reducer.is_possible():
        sink.current.watch_reducer(name, _count_gradients)


def _fail(state: _Construction) -> None:
    sink.current.failed(state[0])


def _count_gradients(ddp: Any) -> int:
    return sum(p.numel() for p in ddp._module_parameters if p.requires_grad)


def _install_step_hooks() -> None:
    global _has_step_hooks
    if not _has_step_hooks:
        _has_step_hooks = True
        install(torch.autograd, "backward", Hook("backward", _before_backward, _end, _failed_backward))
        if hasattr(optimizer, "register_optimizer_step_pre_hook"):
            before, after = Hook("step", _before_step), Hook("step", _after_step)
            optimizer.register_optimizer_step_pre_hook(callback(before, "optimizer.step.pre_hook"))
            optimizer.register_optimizer_step_post_hook(callback(after, "optimizer.step.post_hook"))


def _before_forward(args: tuple[Any, ...], _: dict[str, Any]) -> int | None:
    return sink.current.begin_forward(args[0]) if args and isinstance(args[0], DistributedDataParallel) else None


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

"""Collectives on symmetric memory: kernels that read the memory of other GPUs. They have no handle: they are over when
the stream is past them. Machines without a GPU have the functions, too, and they raise there."""

from typing import Any

import torch
from torch._C import _distributed_c10d

from rollcall.record.hooks import sink
from rollcall.record.hooks.arguments import REDUCE
from rollcall.record.hooks.functional import find_group, install_op, is_real
from rollcall.record.hooks.patching import Hook, install
from rollcall.record.hooks.process_group import complete, enter, fail
from rollcall.record.hooks.sink import NO_RECORD, WORLD, CallArgs
from rollcall.record.ring_format import OP

# Per op of torch.ops.symm_mem: its name in the ring.
_OPS = {
    "one_shot_all_reduce": "all_reduce",
    "one_shot_all_reduce_out": "all_reduce",
    "one_shot_all_reduce_copy": "all_reduce",
    "one_shot_all_reduce_copy_out": "all_reduce",
    "two_shot_all_reduce_": "all_reduce",
    "two_shot_all_reduce_out": "all_reduce",
    "multimem_all_reduce_": "all_reduce",
    "multimem_one_shot_all_reduce": "all_reduce",
    "multimem_one_shot_all_reduce_out": "all_reduce",
    "multimem_one_shot_reduce_out": "reduce",
    "multimem_all_gather_out": "all_gather",
    "reduce_scatter_out": "reduce_scatter",
    "nvshmem_broadcast": "broadcast",
    "nvshmem_all_to_all": "all_to_all",
    "all_to_all_vdev": "all_to_all",
    "all_to_all_vdev_2d": "all_to_all",
    "all_to_all_vdev_2d_offset": "all_to_all",
    "fused_all_gather_matmul": "all_gather",
    "fused_all_gather_scaled_matmul": "all_gather",
    "fused_matmul_reduce_scatter": "reduce_scatter",
    "fused_scaled_matmul_reduce_scatter": "reduce_scatter",
    "_low_contention_all_gather": "all_gather",
    "_low_contention_reduce_scatter": "reduce_scatter",
}


def install_all() -> None:
    for name, op in _OPS.items():
        packet = getattr(torch.ops.symm_mem, name, None)  # not every torch has all
        if packet is not None:
            names = [argument.name for argument in packet.default._schema.arguments]
            install_op("symm_mem", name, _op_hook(op, names))
    memory = getattr(_distributed_c10d, "_SymmetricMemory", None)
    if memory is not None:
        install(memory, "rendezvous", Hook("rendezvous", _before_rendezvous, complete, fail))


def _op_hook(name: str, names: list[str]) -> Hook:
    def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        first = given.get(names[0])
        if sink.current.is_in_op() or not isinstance(first, torch.Tensor) or not is_real(first):
            return None
        reduce, root = REDUCE.get(str(given.get("reduce_op", "")).upper(), 0), given.get("root")
        call = CallArgs((first,), root if isinstance(root, int) else -1, reduce=reduce, flags=0)
        group = find_group(given.get("group_name"))
        mark = NO_RECORD if group is None else sink.current.enter(OP[name], group, call)
        if mark < 0:
            return None
        sink.current.set_in_op(True)  # some are made of others
        return mark

    return Hook(name, before, _complete_op, _fail_op)


def _complete_op(mark: int, _: Any) -> None:
    sink.current.set_in_op(False)
    sink.current.completed(mark)


def _fail_op(mark: int) -> None:
    sink.current.set_in_op(False)
    sink.current.failed(mark)


def _before_rendezvous(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """All ranks of the group exchange where their memory is: who does not come holds up the others."""
    name = args[1] if len(args) > 1 else kwargs.get("group_name")
    group = WORLD if name is None else find_group(name)
    return None if name is not None and group is None else enter("barrier", CallArgs(flags=0), group)

"""The recorder whose frequent methods are in C++. Its class attributes are C functions, which Python does not bind to
the instance: a call costs no frame of Python. There is one recorder per process, so they need no `self`."""

from types import CodeType
from typing import Any

import torch
import torch.distributed as dist

from rollcall.compat import dynamo_frames
from rollcall.compat.torch_groups import group_named
from rollcall.record import ring_format, sites
from rollcall.record.cpp import calls, library
from rollcall.record.cpp.device_clock import CppDeviceClock
from rollcall.record.cpp.ring import CppRing
from rollcall.record.hooks.arguments import REDUCE
from rollcall.record.hooks.sink import CallArgs, this_thread
from rollcall.record.python_recorder import Group, PythonRecorder
from rollcall.record.ring import Ring
from rollcall.record.sources import SourceCopies

_OPTIONS = dist.AllreduceOptions
_KINDS = tuple(dist.ReduceOp.RedOpType.__members__.values())
# By number of torch's reduce op: its number in the ring.
_REDUCE_OPS = tuple(REDUCE.get(kind.name, 0) for kind in sorted(_KINDS, key=lambda kind: kind.value))


class CppRecorder(PythonRecorder):
    _clock_class = CppDeviceClock
    enter = library.enter
    completed = library.op_completed
    _note_on_device = library.note_on_device
    all_reduce_options = library.all_reduce_options
    set_object_count = library.set_object_count
    set_in_op = library.set_in_op
    is_in_op = library.is_in_op
    begin_phase = library.begin_phase
    end_phase = library.end_phase
    begin_forward = library.begin_forward
    begin_step = library.begin_step
    end_step = library.end_step
    watch_reducer = library.watch_reducer
    fail_buckets = library.fail_buckets
    _site = library.site
    _forget = (library.forget_group,)

    def __init__(self, ring: Ring, world_size: int, sources: SourceCopies | None = None) -> None:
        super().__init__(ring, world_size, sources)
        assert isinstance(ring, CppRing)
        ring.attach(self)
        library.attach(self._watched, self._waited_for, _OPTIONS, _REDUCE_OPS)

    def begin(self) -> None:
        super().begin()
        calls.install()

    def rehearse(self) -> None:
        super().rehearse()
        library.follow_device(None, None)

    def turn_off(self, why: str = "") -> None:
        library.stop()
        super().turn_off(why)

    # What C++ leaves to Python, and what it learns from it.

    enter_slowly = PythonRecorder.enter
    complete_slowly = PythonRecorder.completed
    read_options = PythonRecorder.all_reduce_options

    def _group(self, group: Any) -> Group | None:
        found = super()._group(group)
        if found is not None and found[2]:
            library.name_group(group, *found[:2])
        return found

    def _signature(self, key: Any, call: CallArgs) -> int:
        number = super()._signature(key, call)
        if len(call.tensors) == 1 and not call.splits and not this_thread.object_count:
            library.name_shape(call.tensors[0], number)
        return number

    # What C++ asks, once for each code object and bucket (and name_site, name_phase and name_thread of the superclass).

    def kind_of_code(self, code: CodeType) -> int:
        return sites.kind(code)

    def name_bucket(self, tensor: torch.Tensor, index: int, group: str) -> tuple[int, int]:
        """The numbers of its group and its signature."""
        with self._lock:
            found: Any = group_named(group)
            number, *_ = self._groups.get(id(found)) or self._group(found) or (0,)  # found by its name, so it has one
            call = CallArgs((tensor,), splits=("bucket", index), flags=ring_format.ASYNC | ring_format.BUCKET)
            return number, self._signature((tensor.shape, tensor.dtype, call.splits, 0), call)


# The kernel in C++ calls these, in the middle of a backward, where no hook is around them.
for _called in (CppRecorder.name_bucket, CppRecorder.name_thread):
    dynamo_frames.leave_out(_called, with_callees=True)

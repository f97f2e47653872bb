"""The recorder whose frequent methods are in C++. Its class attributes are C functions, which Python does not bind to
the instance: a call costs no frame of Python. There is one recorder per process, so they need no `self`."""

from types import CodeType
from typing import Any

import torch

from rollcall.compat.torch_groups import group_named
from rollcall.record import ring_format, sites
from rollcall.record.cpp import library
from rollcall.record.cpp.ring import CppRing
from rollcall.record.hooks.sink import CallArgs
from rollcall.record.python_recorder import PythonRecorder
from rollcall.record.ring import Ring
from rollcall.record.sources import SourceKeeper


class CppRecorder(PythonRecorder):
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

    def __init__(self, ring: Ring, world_size: int, sources: SourceKeeper | None = None) -> None:
        super().__init__(ring, world_size, sources)
        assert isinstance(ring, CppRing)
        ring.attach(self)

    def turn_off(self) -> None:
        super().turn_off()
        library.stop()

    # What C++ asks, once for each code object and bucket (and name_site, name_phase and name_thread of the superclass).

    def kind_of_code(self, code: CodeType) -> int:
        return sites.kind(code)

    def name_bucket(self, tensor: torch.Tensor, index: int, group: str) -> tuple[int, int]:
        """The numbers of its group and its signature."""
        with self._lock:
            found: Any = group_named(group)
            number, *_ = self._groups.get(id(found)) or self._group(found)
            call = CallArgs((tensor,), splits=("bucket", index), flags=ring_format.ASYNC | ring_format.BUCKET)
            return number, self._signature((tensor.shape, tensor.dtype, call.splits, 0), call)

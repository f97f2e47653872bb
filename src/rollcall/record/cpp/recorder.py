"""The recorder where the pen is in C++: it gives names, and leaves the writing to it."""

from types import CodeType
from typing import Any, cast

import torch
from torch.distributed import distributed_c10d

from rollcall.record import ring_format, sites
from rollcall.record.cpp import pen
from rollcall.record.cpp.ring import SwiftRing
from rollcall.record.hooks.sink import Seen
from rollcall.record.recorder import Recorder


class SwiftRecorder(Recorder):
    """What it has in place of the recorder's own methods is found on it first."""

    def __init__(self, ring: SwiftRing, world_size: int) -> None:
        super().__init__(ring, world_size)
        ring.attach(self)
        self._add, self._completed = pen.add, pen.completed
        self._site = pen.site  # type: ignore[method-assign]
        self.begin_phase, self.end_phase = pen.begin_phase, pen.end_phase  # type: ignore[method-assign]

    def turn_off(self) -> None:
        super().turn_off()
        pen.stop()

    # What the pen asks, once for each.

    def look_at(self, code: CodeType) -> int:
        return sites.kind(code)

    def name_site(self, places: sites.Places) -> int:
        return self._new_site(places)

    def name_phase(self, name: str) -> int:
        return self._ring.name("phase", name, name)

    def name_thread(self) -> int:
        return self._thread()

    def name_bucket(self, tensor: torch.Tensor, index: int, group: str) -> tuple[int, int]:
        """The numbers of its group and its signature."""
        with self._lock:
            found: Any = distributed_c10d._resolve_process_group(cast(Any, group))
            number, *_ = self._groups.get(id(found)) or self._group(found)
            seen = Seen((tensor,), splits=("bucket", index), flags=ring_format.ASYNC | ring_format.BUCKET)
            return number, self._signature((tensor.shape, tensor.dtype, seen.splits, 0), seen)

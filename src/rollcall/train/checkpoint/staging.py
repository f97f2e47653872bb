"""Copies the state into buffers of our own, so that training continues while the copy is written.

What the next forward pass may change (the averages of batch norm, random generators) is copied at once. Parameters and
the optimizer's tensors change only in the optimizer's next step: they are copied during the next forward and backward
pass, and that step waits until the copy is complete.
"""

import copy
import math
import re
import threading
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from rollcall.train.checkpoint.state import RankState
from rollcall.train.checkpoint.storage import Values
from rollcall.train.weights.parts import local_part

_MODEL = re.compile(r"(rank-\d+\.)?model\.")


@dataclass(frozen=True)
class PendingCopy:
    name: str
    source: torch.Tensor
    buffer: torch.Tensor
    version: int  # of the source when the snapshot was taken; torch counts changes in place


class StagingBuffers:
    """Every snapshot uses the same buffers: allocating memory takes longer than the copy."""

    def __init__(self, device: torch.device) -> None:
        self._buffers: dict[str, torch.Tensor] = {}
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._staged: StagedState | None = None
        self.waited_s = 0.0  # for which the optimizer has waited, in total

    def begin(self, state: RankState) -> "StagedState":
        """Copy what may change at once. `StagedState.finish` copies the rest, in another thread."""
        values, pending = {}, []
        for name, value in state.values.items():
            if not isinstance(value, torch.Tensor):
                values[name] = copy.deepcopy(value)
                continue
            source = local_part(value)
            buffer = self._buffer(name, source)
            # Not DTensor.from_local: it would move the buffer back to the mesh's device.
            values[name] = DTensor(buffer, value._spec, requires_grad=False) if isinstance(value, DTensor) else buffer  # type: ignore[no-untyped-call]
            if name in state.deferrable:
                pending.append(PendingCopy(name, source.detach(), buffer, source._version))
            else:
                buffer.copy_(source.detach())
        self._staged = StagedState(values, pending, self._stream)
        return self._staged

    def wait(self, *_: Any) -> None:
        """Called before each optimizer step: wait until the copy is complete."""
        if self._staged is not None:
            began_s = time.perf_counter()
            self._staged.wait()
            self._staged = None
            self.waited_s += time.perf_counter() - began_s

    def _buffer(self, name: str, source: torch.Tensor) -> torch.Tensor:
        found = self._buffers.get(name)
        if found is None or found.shape != source.shape or found.dtype != source.dtype:
            found = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
            self._buffers[name] = found
        return found


class StagedState:
    """The values of a snapshot, some of which are still to be copied.

    `changed` names a tensor that something other than the optimizer changed during the copy.
    """

    def __init__(self, values: Values, pending: list[PendingCopy], stream: torch.cuda.Stream | None) -> None:
        self._values, self._pending = values, pending
        self._copied = threading.Event()
        self.changed: str | None = None
        self._event = _copy_on(stream, pending) if stream is not None else None

    def wait(self) -> None:
        """Lets the thread of the optimizer wait until the values are copied."""
        if self._event is not None:
            self.changed = self._find_change()
            torch.cuda.current_stream().wait_event(self._event)  # the GPU waits, this thread does not
            self._copied.set()
        else:
            self._copied.wait()

    def finish(self) -> Values:
        """The values, completely copied. For the thread that writes them."""
        if self._event is not None:
            self._event.synchronize()
            change = self._find_change()
            if not self._copied.is_set():  # otherwise the optimizer may already have changed the tensors
                self.changed = change
            return self._values
        try:
            with torch.no_grad():
                for each in self._pending:
                    each.buffer.copy_(each.source)
            self.changed = self._find_change()
        finally:
            self._copied.set()
        return self._values

    def find_non_finite(self) -> str | None:
        """The first of the model's tensors that contains a NaN or an infinity."""
        for name, value in self._values.items():
            of_model = _MODEL.match(name)
            if of_model and isinstance(value, torch.Tensor) and not _is_finite(local_part(value)):
                return name[of_model.end() :]
        return None

    def _find_change(self) -> str | None:
        changed = (each.name for each in self._pending if each.source._version != each.version)
        return next((name.removeprefix("model.") for name in changed), None)


def _is_finite(tensor: torch.Tensor) -> bool:
    """By its smallest and largest value: torch.isfinite of all values would take 18 times as long."""
    if not (tensor.is_floating_point() and tensor.numel()):
        return True
    comparable = tensor.float() if tensor.element_size() == 1 else tensor  # torch does not compare float8
    return all(math.isfinite(each) for each in torch.stack(torch.aminmax(comparable)).tolist())


def _copy_on(stream: torch.cuda.Stream, pending: list[PendingCopy]) -> torch.cuda.Event:
    """Copies on a separate stream, so that the GPU copies while it computes."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for each in pending:
            each.buffer.copy_(each.source, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event

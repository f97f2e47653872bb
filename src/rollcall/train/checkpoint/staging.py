"""A copy of the state in memory of our own, so that training goes on while it is written.

What the next forward pass may change (batch norm's averages, random generators) is copied at once. Parameters and the
optimizer's tensors change in the optimizer's next step only: they are copied beside the next forward and backward
pass, and that step waits for the copy, if it comes so soon.
"""

import copy
import re
import threading
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from rollcall.train.checkpoint.state import State
from rollcall.train.checkpoint.storage import Values

_MODEL = re.compile(r"(rank-\d+\.)?model\.")


@dataclass(frozen=True)
class Waiting:
    """A tensor that is still to be copied, as it was when the snapshot was taken."""

    name: str
    source: torch.Tensor
    buffer: torch.Tensor
    version: int  # torch counts what is done to a tensor in place


class Staging:
    """Buffers that every snapshot uses again: fresh memory costs more than the copy."""

    def __init__(self, device: torch.device) -> None:
        self._buffers: dict[str, torch.Tensor] = {}
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._draft: Draft | None = None
        self.waited_s = 0.0  # that the optimizer had to wait, in all

    def begin(self, state: State) -> "Draft":
        """Copy what cannot wait. The rest is copied by `Draft.finish`, in another thread."""
        values, waiting = {}, []
        for name, value in state.values.items():
            if not isinstance(value, torch.Tensor):
                values[name] = copy.deepcopy(value)
                continue
            source = value.to_local() if isinstance(value, DTensor) else value
            buffer = self._buffer(name, source)
            # Not from_local, which would send the buffer back to the mesh's device.
            values[name] = DTensor(buffer, value._spec, requires_grad=False) if isinstance(value, DTensor) else buffer  # type: ignore[no-untyped-call]
            if name in state.resting:
                waiting.append(Waiting(name, source.detach(), buffer, source._version))
            else:
                buffer.copy_(source.detach())
        self._draft = Draft(values, waiting, self._stream)
        return self._draft

    def wait(self, *_: Any) -> None:
        """Before the optimizer changes anything: let the copy be complete."""
        if self._draft is not None:
            began = time.perf_counter()
            self._draft.wait()
            self._draft = None
            self.waited_s += time.perf_counter() - began

    def _buffer(self, name: str, source: torch.Tensor) -> torch.Tensor:
        found = self._buffers.get(name)
        if found is None or found.shape != source.shape or found.dtype != source.dtype:
            found = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
            self._buffers[name] = found
        return found


class Draft:
    """Values for a snapshot, whose copying is yet to be finished."""

    def __init__(self, values: Values, waiting: list[Waiting], stream: torch.cuda.Stream | None) -> None:
        self._values, self._waiting = values, waiting
        self._copied = threading.Event()
        self._torn: str | None = None
        self._event: torch.cuda.Event | None = None
        if stream is not None:
            self._event = _copy_beside(waiting, stream)

    def wait(self) -> None:
        """For the one thread that changes what is copied."""
        if self._event is not None:
            self._torn = self._find_change()
            torch.cuda.current_stream().wait_event(self._event)  # the GPU waits, we need not
            self._copied.set()
        else:
            self._copied.wait()

    def finish(self) -> Values:
        """The values, copied. For the thread that writes them."""
        if self._event is not None:
            self._event.synchronize()
            change = self._find_change()
            if not self._copied.is_set():  # otherwise the optimizer may have been at work meanwhile
                self._torn = change
            return self._values
        try:
            with torch.no_grad():
                for each in self._waiting:
                    each.buffer.copy_(each.source)
            self._torn = self._find_change()
        finally:
            self._copied.set()
        return self._values

    def what_is_torn(self) -> str | None:
        """What was changed while it was copied, by somebody who did not wait."""
        return self._torn

    def what_is_not_finite(self) -> str | None:
        """The first of the model's tensors with a NaN or an infinity in it."""
        for name, value in self._values.items():
            of_model = _MODEL.match(name)
            if of_model and isinstance(value, torch.Tensor) and value.is_floating_point():
                local = value.to_local() if isinstance(value, DTensor) else value
                if not torch.isfinite(local).all():
                    return name[of_model.end() :]
        return None

    def _find_change(self) -> str | None:
        changed = (each.name for each in self._waiting if each.source._version != each.version)
        return next((name.removeprefix("model.") for name in changed), None)


def _copy_beside(waiting: list[Waiting], stream: torch.cuda.Stream) -> torch.cuda.Event:
    """On a stream of its own: the GPU copies while it computes."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for each in waiting:
            each.buffer.copy_(each.source, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
